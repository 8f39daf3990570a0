{{/*
The seven services. An eighth is one row here, one section of values, and one line in services.yaml.
values: its section of values.yaml. name: its component, and its user at the broker (_broker.tpl). scalable: a Deployment
whose replicas the chart does not set; the others are StatefulSets with a volume. called: other services call it by gRPC.
priority: its PriorityClass.
*/}}
{{- define "tidegate.services" -}}
task_queue: {values: taskQueue, name: task-queue, scalable: false, called: true, priority: control}
actor: {values: actor, name: actor, scalable: true, called: false, priority: actor}
environment: {values: environment, name: environment, scalable: true, called: true, priority: environment}
trajectory_store: {values: trajectoryStore, name: trajectory-store, scalable: false, called: true, priority: control}
learner: {values: learner, name: learner, scalable: false, called: true, priority: learner}
weight_distribution: {values: weightDistribution, name: weight-distribution, scalable: false, called: true, priority: control}
admission: {values: admission, name: admission, scalable: false, called: true, priority: control}
{{- end -}}

{{/* A service's section of the values merged over podDefaults: (list root row) */}}
{{- define "tidegate.pod" -}}
{{- $root := index . 0 -}}
{{- mergeOverwrite (deepCopy $root.Values.podDefaults) (index $root.Values (index . 1).values) | toYaml -}}
{{- end -}}

{{/* Processes of the learner: the chart's value, else the run file's. */}}
{{- define "tidegate.ranks" -}}
{{- .Values.learner.ranks | default (.Values.run.learner | default dict).ranks | default 1 | int -}}
{{- end -}}

{{/* The key of `images` for a service: (list root service pod) */}}
{{- define "tidegate.imageKey" -}}
{{- $root := index . 0 -}}{{- $service := index . 1 -}}{{- $pod := index . 2 -}}
{{- if ne ($pod.image | default "auto") "auto" -}}{{ $pod.image }}
{{- else if eq $service "learner" -}}{{ ternary "learnerGpu" "cpu" (gt (int $pod.gpu) 0) }}
{{- else if gt (int $pod.gpu) 0 -}}actorGpu
{{- else if and (eq $service "actor") (not (has $root.Values.run.policy.kind (list "mlp" "cnn"))) -}}cpu
{{- else -}}light
{{- end -}}
{{- end -}}
