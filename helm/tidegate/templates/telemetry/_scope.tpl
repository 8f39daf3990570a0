{{/* Rules and dashboards are generated for every run of a Prometheus; with `scope: release` they are narrowed here to the
release's own, so that two releases neither record nor alert twice (docs/decisions/0018). */}}

{{/* The rules of a file in their scope: (list root text). */}}
{{- define "tidegate.scopedRules" -}}
{{- $root := index . 0 -}}
{{- $text := index . 1 -}}
{{- if eq $root.Values.rules.scope "release" -}}
{{- $text = $text | replace "tidegate_run_id=~\".+\"" (include "tidegate.ownSeries" $root) -}}
{{- $text = $text | replace "namespace=~\".+\"" (printf "namespace=%q" $root.Release.Namespace) -}}
{{- $text = $text | replace "(.+)-(" (printf "(%s)-(" (include "tidegate.fullname" $root)) -}}
{{- end -}}
{{- $text | replace "runbook_url: docs/runbooks/" (printf "runbook_url: %sdocs/runbooks/" $root.Values.rules.runbookBase) -}}
{{- end -}}

{{- define "tidegate.ownSeries" -}}
namespace={{ .Release.Namespace | quote }},tidegate_run_id={{ include "tidegate.runId" . | quote }}
{{- end -}}

{{/* What follows the address of a dashboard in its scope: the same for every dashboard of a release, nothing in common for
two releases. */}}
{{- define "tidegate.dashboardSuffix" -}}
{{- if eq .Values.dashboards.scope "release" -}}
-{{ printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 8 }}
{{- end -}}
{{- end -}}

{{/* One dashboard in its scope: (list root text addresses), with the addresses of all dashboards. */}}
{{- define "tidegate.scopedDashboard" -}}
{{- $root := index . 0 -}}
{{- $text := index . 1 -}}
{{- if eq $root.Values.dashboards.scope "cluster" -}}
{{- $text -}}
{{- else -}}
{{- $suffix := include "tidegate.dashboardSuffix" $root -}}
{{- range index . 2 }}{{ $text = $text | replace (printf "/d/%s?" .) (printf "/d/%s%s?" . $suffix) }}{{ end -}}
{{- $board := fromJson $text -}}
{{- $release := printf "%s/%s" $root.Release.Namespace $root.Release.Name -}}
{{- $_ := set $board "uid" (printf "%s%s" $board.uid $suffix) -}}
{{- $_ := set $board "title" (printf "%s (%s)" $board.title $release) -}}
{{- $_ := set $board "tags" (list "tidegate" $release) -}}
{{- range $board.links }}{{ $_ := set . "tags" (list $release) }}{{ end -}}
{{- range $board.templating.list -}}
{{- if eq .type "query" -}}
{{- $_ := set . "query" (.query | replace "tidegate_run_id=~\".+\"" (include "tidegate.ownSeries" $root)) -}}
{{- $_ := set . "allValue" (ternary $root.Release.Namespace (include "tidegate.runId" $root) (eq .name "namespace")) -}}
{{- end -}}
{{- end -}}
{{- include "tidegate.document" $board -}}
{{- end -}}
{{- end -}}
