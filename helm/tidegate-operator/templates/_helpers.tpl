{{- define "operator.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "operator.selector" -}}
app.kubernetes.io/name: tidegate-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/part-of: tidegate-operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "operator.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- $image.repository -}}:{{ $image.tag | default .Chart.AppVersion }}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* Namespaces that are watched, as JSON; an empty list: all. */}}
{{- define "operator.namespaces" -}}
{{- if and .Values.watch.all .Values.watch.namespaces -}}
{{- fail "watch.all is true and watch.namespaces is set: leave one of them out" -}}
{{- end -}}
{{- if .Values.watch.all }}[]{{ else }}{{ .Values.watch.namespaces | default (list .Release.Namespace) | uniq | toJson }}{{ end -}}
{{- end -}}

{{/* JSON is YAML, and keeps integers as they are. */}}
{{- define "operator.document" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "namespaces" (include "operator.namespaces" . | fromJsonArray) -}}
{{- $_ := set $config "values" .Values.runValues -}}
{{- with .Values.telemetry.endpoint }}{{ $_ := set $config "telemetry" (dict "otlp_endpoint" .) }}{{ end -}}
{{- $config | toPrettyJson -}}
{{- end -}}
