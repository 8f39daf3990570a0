{{/*
The permitted flows, from -> [to:port]; everything else is denied. Those of services are in _services.tpl; `helm test` asks
each that is called whether it is ready.
*/}}
{{- define "tidegate.flows" -}}
{{- $called := list -}}
{{- range $_, $row := include "tidegate.services" . | fromYaml }}
{{ $row.name }}: {{ toJson $row.calls }}
{{- if $row.called }}{{ $called = append $called (printf "%s:grpc" $row.name) }}{{ end }}
{{- end }}
test: {{ toJson $called }}
nats: []
collector: []
credentials: []
certificates: []
streams: []
ui: ["admission:grpc", "learner:grpc", "task-queue:grpc", "trajectory-store:grpc"]
{{- end -}}

{{/* Every flow of this release: the table, the broker and the collector. */}}
{{- define "tidegate.allFlows" -}}
{{- $root := . -}}
{{- $speakers := splitList " " (include "tidegate.speakers" .) -}}
{{- range $from, $targets := include "tidegate.flows" . | fromYaml }}
{{- if has $from $speakers -}}
{{- if eq $root.Values.nats.mode "builtin" }}{{ $targets = append $targets "nats:client" }}{{ end -}}
{{- if and (eq $root.Values.collector.mode "builtin") (ne $from "streams") }}{{ $targets = append $targets "collector:otlp-grpc" }}{{ end -}}
{{- end -}}
{{- if and (eq $from "nats") (gt (int $root.Values.nats.replicas) 1) }}{{ $targets = append $targets "nats:routes" }}{{ end }}
{{ $from }}: {{ toJson $targets }}
{{- end }}
{{- end -}}

{{/* host:port of a receiver of telemetry that is no pod of this release; the run's own goes before the collector's. */}}
{{- define "tidegate.receiverOutside" -}}
{{- $own := (.Values.run.telemetry | default dict).otlp_endpoint -}}
{{- if $own -}}{{ $own }}
{{- else if eq .Values.collector.mode "external" -}}{{ include "tidegate.otlpEndpoint" . }}
{{- end -}}
{{- end -}}

{{/* The URL of an inference server that is not in the actor's own pod. */}}
{{- define "tidegate.serverOutside" -}}
{{- $server := (.Values.run.actor | default dict).server | default dict -}}
{{- if and $server.url (not $server.python) (not (regexMatch `^https?://(127\.|localhost[:/]|localhost$|\[::1\])` $server.url)) -}}{{ $server.url }}{{ end -}}
{{- end -}}

{{/* The port of a URL, or the one of its scheme. */}}
{{- define "tidegate.urlPort" -}}
{{- $url := urlParse . -}}
{{- $ports := dict "nats" "4222" "tls" "4222" "ws" "80" "wss" "443" "http" "80" "https" "443" -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (get $ports $url.scheme) -}}
{{- end -}}

{{/* Components that connect to the broker and, but for the Job of the streams, send to the collector. */}}
{{- define "tidegate.speakers" -}}
{{- $speakers := list "test" "streams" -}}
{{- range $_, $row := include "tidegate.services" . | fromYaml }}{{ $speakers = append $speakers $row.name }}{{ end -}}
{{- join " " $speakers -}}
{{- end -}}

{{/* Components with pods in this release. */}}
{{- define "tidegate.components" -}}
{{- $components := splitList " " (include "tidegate.speakers" .) -}}
{{- if eq .Values.nats.mode "builtin" }}
{{- $components = append $components "nats" -}}
{{- end -}}
{{- if include "tidegate.makesCredentials" . }}{{ $components = append $components "credentials" }}{{ end -}}
{{- if eq (include "tidegate.tls" .) "self-signed" }}{{ $components = append $components "certificates" }}{{ end -}}
{{- if eq .Values.collector.mode "builtin" }}{{ $components = append $components "collector" }}{{ end -}}
{{- if .Values.ui.enabled }}{{ $components = append $components "ui" }}{{ end -}}
{{- join " " $components -}}
{{- end -}}
