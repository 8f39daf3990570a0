{{/*
Replicas of journal and ledger in PostgreSQL (`run.postgres`). The pods of task queue and trajectory store have its address and
password, and reach it; no others do.
*/}}

{{/* Whether a service replicates its file: (list root service) */}}
{{- define "tidegate.replicated" -}}
{{- if and (has (index . 1) (list "task_queue" "trajectory_store")) (kindIs "map" (index . 0).Values.run.postgres) }}true{{ end -}}
{{- end -}}

{{/* The variable with the address: (list root service) */}}
{{- define "tidegate.postgresEnv" -}}
{{- if include "tidegate.replicated" . -}}
{{- $root := index . 0 -}}
- name: {{ $root.Values.run.postgres.uri_env | default "POSTGRES_URI" }}
  valueFrom: {secretKeyRef: {name: {{ $root.Values.postgres.existingSecret }}, key: {{ $root.Values.postgres.key }}}}
{{- end -}}
{{- end -}}

{{- define "tidegate.postgresProblems" -}}
{{- $problems := list -}}
{{- $set := kindIs "map" .Values.run.postgres -}}
{{- if and $set (not .Values.postgres.existingSecret) -}}
{{- $problems = append $problems "run.postgres is set and postgres.existingSecret is not: no pod would know the address. Name a Secret whose entry postgres.key is postgresql://user:password@host/database" -}}
{{- else if and .Values.postgres.existingSecret (not $set) -}}
{{- $problems = append $problems "postgres.existingSecret is set without run.postgres: nothing would be replicated. Set run.postgres to {}, or leave it out" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
