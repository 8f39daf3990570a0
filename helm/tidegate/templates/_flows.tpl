{{/*
The permitted flows, from -> [to:port]; everything else is denied. A port is the container's name for it (the policies use
numbers, because not every network plugin supports names for egress); `any` is every port. tests/chart compares the
rendered table with its own.
*/}}
{{- define "tidegate.flows" -}}
task-queue: ["trajectory-store:grpc"]
actor: ["environment:grpc", "trajectory-store:grpc", "weight-distribution:grpc"]
environment: ["trajectory-store:grpc"]
trajectory-store: []
learner: ["environment:grpc", "trajectory-store:grpc", "weight-distribution:grpc", "learner:any"]
weight-distribution: []
# Operators run `tidegate status`, `audit` and `explain` in its pod by kubectl exec.
admission: ["task-queue:grpc", "trajectory-store:grpc", "learner:grpc", "weight-distribution:grpc"]
test: ["task-queue:grpc", "environment:grpc", "trajectory-store:grpc", "learner:grpc", "weight-distribution:grpc", "admission:grpc"]
nats: []
collector: []
credentials: []
{{- end -}}

{{/* Every flow of this release: the table, the broker and the collector. */}}
{{- define "tidegate.allFlows" -}}
{{- $root := . -}}
{{- $speakers := list "test" -}}
{{- range $_, $row := include "tidegate.services" . | fromYaml }}{{ $speakers = append $speakers $row.name }}{{ end -}}
{{- range $from, $targets := include "tidegate.flows" . | fromYaml }}
{{- if has $from $speakers -}}
{{- if eq $root.Values.nats.mode "builtin" }}{{ $targets = append $targets "nats:client" }}{{ end -}}
{{- if eq $root.Values.collector.mode "builtin" }}{{ $targets = append $targets "collector:otlp-grpc" }}{{ end -}}
{{- end -}}
{{- if and (eq $from "nats") (gt (int $root.Values.nats.replicas) 1) }}{{ $targets = append $targets "nats:routes" }}{{ end }}
{{ $from }}: {{ toJson $targets }}
{{- end }}
{{- end -}}

{{/* Components with pods in this release. */}}
{{- define "tidegate.components" -}}
{{- $components := list "test" -}}
{{- range $_, $row := include "tidegate.services" . | fromYaml }}{{ $components = append $components $row.name }}{{ end -}}
{{- if eq .Values.nats.mode "builtin" }}
{{- $components = append $components "nats" -}}
{{- if not .Values.nats.auth.existingSecret }}{{ $components = append $components "credentials" }}{{ end -}}
{{- end -}}
{{- if eq .Values.collector.mode "builtin" }}{{ $components = append $components "collector" }}{{ end -}}
{{- join " " $components -}}
{{- end -}}
