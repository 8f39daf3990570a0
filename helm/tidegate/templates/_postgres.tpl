{{/*
Replicas of journal and ledger in PostgreSQL (`run.postgres`). The pods of task queue and trajectory store have its address and
password, and reach it; no others do.
*/}}

{{/* Whether a service replicates its file: (list root service) */}}
{{- define "tidegate.replicated" -}}
{{- if and (has (index . 1) (list "task_queue" "trajectory_store")) (kindIs "map" (index . 0).Values.run.postgres) }}true{{ end -}}
{{- end -}}

{{/*
Whether the pod of a single service may start on another node although nobody knows what became of the one before it: its files are
rows of PostgreSQL, which takes no more from the earlier owner, and on no volume. A StatefulSet would wait for a person:
(list root service pod)
*/}}
{{- define "tidegate.isMovable" -}}
{{- if and (include "tidegate.replicated" .) (not (index . 2).persistence.enabled) }}true{{ end -}}
{{- end -}}

{{/*
A pod's values, with how long it stays on a lost node where it may start on another one. Kubernetes' default is five minutes, in which
nothing is trained: (list root service pod)
*/}}
{{- define "tidegate.movablePod" -}}
{{- $pod := deepCopy (index . 2) -}}
{{- if include "tidegate.isMovable" . -}}
{{- range list "node.kubernetes.io/unreachable" "node.kubernetes.io/not-ready" -}}
{{- $lost := dict "key" . "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30 -}}
{{- $_ := set $pod "tolerations" (append ($pod.tolerations | default list) $lost) -}}
{{- end -}}
{{- end -}}
{{- toYaml $pod -}}
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
