{{/*
Replicas of journal and ledger in PostgreSQL (`run.postgres`). The pods of task queue and trajectory store have its address and
password, and reach it; no others do.
*/}}

{{/* Whether a service replicates its file: (list root service) */}}
{{- define "tidegate.replicated" -}}
{{- if and (has (index . 1) (list "task_queue" "trajectory_store")) (kindIs "map" (index . 0).Values.run.postgres) }}true{{ end -}}
{{- end -}}

{{/*
Whether the pod of a single service may start on another node while the state of the pod before it is unknown: its files are rows of
PostgreSQL, which takes no more from the earlier owner, and on no volume. A StatefulSet would wait for a person:
(list root service pod)
*/}}
{{- define "tidegate.isMovable" -}}
{{- if and (include "tidegate.replicated" .) (not (index . 2).persistence.enabled) }}true{{ end -}}
{{- end -}}

{{/*
The values of such a pod, with how long it stays on a lost node. Kubernetes' default is five minutes, in which nothing is trained.
*/}}
{{- define "tidegate.movablePod" -}}
{{- $tolerations := .tolerations | default list -}}
{{- range list "node.kubernetes.io/unreachable" "node.kubernetes.io/not-ready" -}}
{{- $tolerations = append $tolerations (dict "key" . "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30) -}}
{{- end -}}
{{- toYaml (set (deepCopy .) "tolerations" $tolerations) -}}
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
{{- range pick (include "tidegate.services" . | fromYaml) "task_queue" "trajectory_store" -}}
{{- $values := index $.Values .values -}}
{{- if gt (int $values.replicas) 1 -}}
{{- $pods := printf "%s.replicas is %d" .values (int $values.replicas) -}}
{{- if not $set -}}
{{- $problems = append $problems (printf "%s and run.postgres is not set: PostgreSQL says which of the pods works, and has what the others take over. Set run.postgres to {}, or the replicas to 1" $pods) -}}
{{- end -}}
{{- if $values.persistence.enabled -}}
{{- $problems = append $problems (printf "%s and %s.persistence.enabled is true: each pod is filled from PostgreSQL, and needs no volume. Set it to false, or the replicas to 1" $pods .values) -}}
{{- end -}}
{{- if $.Values.restore.from -}}
{{- $problems = append $problems (printf "%s and restore.from is set: each of the pods would begin from the backup. Install with one replica, and raise the number by an upgrade without restore.from" $pods) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
