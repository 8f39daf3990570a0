{{/*
The services. Another one is a row here, a section of values, and a line in services.yaml.
values: its section of values.yaml. name: its component, and its user at the broker. scalable: a Deployment whose replicas
the chart does not set; the others are StatefulSets with a volume, but for tidegate.isMovable. called: other services call it by gRPC. priority: its
PriorityClass.
calls: the services that it calls, as component:port; everything else is denied. A port is the container's name for it (the
policies use numbers, because not every network plugin supports names for egress); `any` is every port. One that this
release has not is no flow. tests/chart compares the rendered flows with its own table.
Its permissions at the broker are a row of services/tidegate/wire/permissions.py.
*/}}
{{- define "tidegate.services" -}}
task_queue:
  {values: taskQueue, name: task-queue, scalable: false, called: true, priority: control,
   calls: ["trajectory-store:grpc"]}
actor:
  {values: actor, name: actor, scalable: true, called: false, priority: actor,
   calls: ["environment:grpc", "inference:grpc", "trajectory-store:grpc", "weight-distribution:grpc"]}
{{- if eq ((.Values.run.actor | default dict).engine | default "auto") "inference_env" }}
inference:
  {values: inference, name: inference, scalable: false, called: true, priority: actor,
   calls: ["environment:grpc", "weight-distribution:grpc"]}
{{- end }}
environment:
  {values: environment, name: environment, scalable: true, called: true, priority: environment,
   calls: ["trajectory-store:grpc"]}
trajectory_store:
  {values: trajectoryStore, name: trajectory-store, scalable: false, called: true, priority: control,
   calls: []}
learner:
  {values: learner, name: learner, scalable: false, called: true, priority: learner,
   calls: ["environment:grpc", "trajectory-store:grpc", "weight-distribution:grpc", "learner:any"]}
weight_distribution:
  {values: weightDistribution, name: weight-distribution, scalable: false, called: true, priority: control,
   calls: []}
# Operators run commands in its pod by kubectl exec: status and audit call the others, pause and await admission itself.
admission:
  {values: admission, name: admission, scalable: false, called: true, priority: control,
   calls: ["admission:grpc", "task-queue:grpc", "trajectory-store:grpc", "learner:grpc", "weight-distribution:grpc"]}
{{- end -}}

{{/* A service's section of the values merged over podDefaults: (list root row) */}}
{{- define "tidegate.pod" -}}
{{- $root := index . 0 -}}
{{- mergeOverwrite (deepCopy $root.Values.podDefaults) (index $root.Values (index . 1).values) | toYaml -}}
{{- end -}}

{{/* Whether a service has pods of which one works and the others stand by, told apart by their health: (list root service) */}}
{{- define "tidegate.hasStandbys" -}}
{{- if eq (index . 1) "learner" -}}
{{- if int (index . 0).Values.learner.standbys }}true{{ end -}}
{{- else if include "tidegate.replicated" . -}}
{{- $row := index (include "tidegate.services" (index . 0) | fromYaml) (index . 1) -}}
{{- if gt (int (index (index . 0).Values $row.values).replicas) 1 }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* Processes of the learner: the chart's value, else the run file's, else one for each GPU of a pod. */}}
{{- define "tidegate.ranks" -}}
{{- $inPod := include "tidegate.ranksInPod" . | int -}}
{{- $ranks := .Values.learner.ranks | default (.Values.run.learner | default dict).ranks | default $inPod | int -}}
{{- if mod $ranks $inPod }}
{{- fail (printf "the learner has %d ranks (learner.ranks, else run.learner.ranks) and learner.gpu is %d: each pod has a rank for each of its GPUs. Set learner.ranks to a multiple of %d" $ranks $inPod $inPod) }}
{{- end }}
{{- $ranks -}}
{{- end -}}

{{/* Ranks of each of its pods: one a GPU. */}}
{{- define "tidegate.ranksInPod" -}}
{{- max 1 (int .Values.learner.gpu) -}}
{{- end -}}

{{/* Its pods. */}}
{{- define "tidegate.learnerPods" -}}
{{- div (include "tidegate.ranks" . | int) (include "tidegate.ranksInPod" . | int) -}}
{{- end -}}

{{/* What `tidegate check` holds the model to: GPUs, memory and disk of the learner's pods, as its options. */}}
{{- define "tidegate.learnerRoom" -}}
{{- $learner := .Values.learner -}}
- --pods={{ include "tidegate.learnerPods" . }}
{{- if $learner.gpuKind }}
- --gpus={{ include "tidegate.ranks" . }}x{{ $learner.gpuKind }}
{{- end }}
{{- with ($learner.resources.limits | default dict).memory }}
- --memory={{ include "tidegate.bytes" . }}
{{- end }}
{{- if $learner.persistence.enabled }}
- --disk={{ include "tidegate.bytes" $learner.persistence.size }}
{{- end }}
{{- end -}}

{{/* Whether actors start a vLLM of their own. */}}
{{- define "tidegate.ownVllm" -}}
{{- $actor := .Values.run.actor | default dict -}}
{{- and (eq ($actor.engine | default "auto") "vllm") (ne (($actor.server | default dict).python | default "") "") -}}
{{- end -}}

{{/* The pods of admission, of which one works and the others stand by, separated by commas; empty where it has one. */}}
{{- define "tidegate.admissionPods" -}}
{{- $name := include "tidegate.name" (list . "admission") -}}
{{- $pods := list -}}
{{- range $index := until (int .Values.admission.replicas) }}{{ $pods = append $pods (printf "%s-%d" $name $index) }}{{ end -}}
{{- if gt (len $pods) 1 }}{{ join "," $pods }}{{ end -}}
{{- end -}}

{{/* The key of `images` for a service: (list root service pod) */}}
{{- define "tidegate.imageKey" -}}
{{- $root := index . 0 -}}{{- $service := index . 1 -}}{{- $pod := index . 2 -}}
{{- if ne ($pod.image | default "auto") "auto" -}}{{ $pod.image }}
{{- else if eq $service "learner" -}}{{ ternary "learnerGpu" "cpu" (gt (int $pod.gpu) 0) }}
{{- else if and (gt (int $pod.gpu) 0) (eq $service "actor") (eq (include "tidegate.ownVllm" $root) "true") -}}actorVllm
{{- else if gt (int $pod.gpu) 0 -}}actorGpu
{{- else if and (eq $service "actor") (not (has $root.Values.run.policy.kind (list "mlp" "cnn"))) -}}cpu
{{- else -}}light
{{- end -}}
{{- end -}}
