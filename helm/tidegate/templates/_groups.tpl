{{/*
Workloads of other controllers than Kubernetes' own: a learner as a JobSet or as a TrainJob, which makes a JobSet, and an actor
of several nodes as a LeaderWorkerSet. All are made from the pods of _workload.tpl. The queue's label is on the object, where
Kueue reads it and suspends it; the chart renders no `suspend` unless asked to, so that an upgrade undoes neither Kueue's nor a
person's.
*/}}

{{/* Metadata of a workload, with the queue that admits it as a whole: (list root service component name) */}}
{{- define "tidegate.workloadMetadata" -}}
{{- $root := index . 0 -}}
{{- $metadata := include "tidegate.metadata" (list $root (index . 2) (index . 3)) -}}
{{- if and $root.Values.kueue.queueName (has (index . 1) (list "actor" "learner")) -}}
{{- $queued := fromYaml $metadata -}}
{{- $_ := set $queued.labels "kueue.x-k8s.io/queue-name" $root.Values.kueue.queueName -}}
{{- $metadata = toYaml $queued -}}
{{- end -}}
{{- $metadata -}}
{{- end -}}

{{/* A pod template without the queue's label, which is the object's: (dict "root" "service" "row" "pod" "name" "pool") */}}
{{- define "tidegate.groupTemplate" -}}
{{- $template := include "tidegate.podTemplate" . | fromYaml -}}
{{- $_ := set $template.metadata "labels" (omit $template.metadata.labels "kueue.x-k8s.io/queue-name") -}}
{{- toYaml $template -}}
{{- end -}}

{{/* Whether the learner's pods are those of a JobSet: its own, or a TrainJob's. */}}
{{- define "tidegate.learnerIsJobSet" -}}
{{- if has .Values.learner.kind (list "JobSet" "TrainJob") }}true{{ end -}}
{{- end -}}

{{/* The Job of the learner's pods, as Kubeflow's tools look for it in a TrainJob. */}}
{{- define "tidegate.learnerJob" -}}
{{- ternary "node" "rank" (eq .Values.learner.kind "TrainJob") -}}
{{- end -}}

{{/* The learner's object, and the claim of its pods: (dict "root" "service" "row" "pod" "name" "pool") */}}
{{- define "tidegate.learnerOfOthers" -}}
{{- $root := .root -}}{{- $pod := .pod -}}{{- $kind := $root.Values.learner.kind -}}
{{- $api := ternary "trainer.kubeflow.org/v1alpha1" "jobset.x-k8s.io/v1alpha2" (eq $kind "TrainJob") -}}
{{- if not ($root.Capabilities.APIVersions.Has $api) -}}
{{- fail (printf "learner.kind %s: this cluster has no %s; install %s, or render with --api-versions %s" $kind $api (ternary "Kubeflow Trainer" "JobSet" (eq $kind "TrainJob")) $api) -}}
{{- end -}}
{{- if semverCompare "<1.28.0-0" $root.Capabilities.KubeVersion.Version -}}
{{- fail (printf "learner.kind %s: the Service of its first rank needs a label that pods have from Kubernetes 1.28 on. Set learner.kind to StatefulSet" $kind) -}}
{{- end -}}
{{- if eq $kind "TrainJob" }}{{ include "tidegate.trainJob" . }}{{ else }}{{ include "tidegate.jobSet" . }}{{ end }}
{{- if $pod.persistence.enabled }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  {{- include "tidegate.metadata" (list $root .row.name (printf "%s-data" .name) (ternary (dict "helm.sh/resource-policy" "keep") dict $pod.persistence.retain)) | nindent 2 }}
spec:
  {{- (include "tidegate.claim" (list $root .row.name $pod.persistence) | fromYaml).spec | toYaml | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tidegate.jobSet" -}}
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  {{- include "tidegate.workloadMetadata" (list .root .service .row.name .name) | nindent 2 }}
spec:
  {{- if not (kindIs "invalid" .pod.suspend) }}
  suspend: {{ .pod.suspend }}
  {{- end }}
  {{- include "tidegate.jobSetSpec" . | nindent 2 }}
{{- end -}}

{{/*
A TrainJob and its runtime. The runtime is the cluster's: Helm creates kinds that it does not know by their names, and Trainer
refuses a TrainJob whose runtime does not exist, so a TrainingRuntime, which comes after it, would refuse every installation.
*/}}
{{- define "tidegate.trainJob" -}}
{{- $root := .root -}}{{- $pod := .pod -}}{{- $runtime := printf "%s-%s" $root.Release.Namespace .name -}}
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata:
  name: {{ $runtime }}
  labels:
    {{- include "tidegate.labels" (list $root .row.name) | nindent 4 }}
spec:
  mlPolicy: {numNodes: {{ include "tidegate.learnerPods" $root }}}
  template:
    metadata:
      labels:
        {{- include "tidegate.labels" (list $root .row.name) | nindent 8 }}
    spec:
      {{- include "tidegate.jobSetSpec" . | nindent 6 }}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  {{- include "tidegate.workloadMetadata" (list $root .service .row.name .name) | nindent 2 }}
spec:
  {{- if not (kindIs "invalid" $pod.suspend) }}
  suspend: {{ $pod.suspend }}
  {{- end }}
  runtimeRef: {apiGroup: trainer.kubeflow.org, kind: ClusterTrainingRuntime, name: {{ $runtime }}}
{{- end -}}

{{/* What makes the pods of both: an indexed Job whose pods are the ranks. */}}
{{- define "tidegate.jobSetSpec" -}}
{{- $root := .root -}}{{- $pod := .pod -}}{{- $pods := include "tidegate.learnerPods" $root | int -}}
{{- $template := include "tidegate.groupTemplate" . | fromYaml -}}
{{- $learner := first $template.spec.containers -}}
{{- /* A rank that fails starts again in its pod, as in a StatefulSet; one that ended with 0 would have finished. */ -}}
{{- $_ := set $template.spec "restartPolicy" "OnFailure" -}}
{{- /* Drained is not finished: of a pod that is evicted the Job has to make another one. */ -}}
{{- $_ := set $learner "env" (append $learner.env (dict "name" "TIDEGATE_JOB" "value" "1")) -}}
{{- if $pod.persistence.enabled -}}
{{- $claim := dict "name" "data" "persistentVolumeClaim" (dict "claimName" (printf "%s-data" .name)) -}}
{{- $_ := set $template.spec "volumes" (append $template.spec.volumes $claim) -}}
{{- if gt $pods 1 -}}
{{- /* All pods have the claim: each writes into a folder of its own. */ -}}
{{- $index := dict "name" "TIDEGATE_POD_INDEX" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.annotations['batch.kubernetes.io/job-completion-index']")) -}}
{{- $_ := set $learner "env" (append $learner.env $index) -}}
{{- range $mount := $learner.volumeMounts -}}
{{- if eq $mount.name "data" }}{{ $_ := set $mount "subPathExpr" "pod-$(TIDEGATE_POD_INDEX)" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq $root.Values.learner.kind "TrainJob" -}}
{{- /* Trainer refuses a training step without a container of this name. */ -}}
{{- $_ := set $learner "name" "node" -}}
{{- $_ := set $template.metadata.annotations "kubectl.kubernetes.io/default-container" "node" -}}
{{- end -}}
network: {enableDNSHostnames: true, subdomain: {{ .name }}-ranks, publishNotReadyAddresses: true}
failurePolicy: {maxRestarts: {{ $pod.restartsMax }}}
replicatedJobs:
  - name: {{ include "tidegate.learnerJob" $root }}
    replicas: 1
    template:
      {{- if eq $root.Values.learner.kind "TrainJob" }}
      metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
      {{- end }}
      spec:
        completionMode: Indexed
        completions: {{ $pods }}
        parallelism: {{ $pods }}
        backoffLimit: {{ $pod.restartsMax }}
        template:
          {{- toYaml $template | nindent 10 }}
{{- end -}}

{{/* An actor of several nodes: its pod leads, and pods with the user's containers are the rest of its server's group. */}}
{{- define "tidegate.leaderWorkerSet" -}}
{{- $root := .root -}}{{- $pod := .pod -}}
{{- if not ($root.Capabilities.APIVersions.Has "leaderworkerset.x-k8s.io/v1") -}}
{{- fail "actor.nodes above 1: this cluster has no leaderworkerset.x-k8s.io/v1; install LeaderWorkerSet, or render with --api-versions leaderworkerset.x-k8s.io/v1" -}}
{{- end -}}
{{- $leader := include "tidegate.groupTemplate" . | fromYaml -}}
{{- $worker := deepCopy $leader -}}
{{- $_ := set $worker.metadata.labels "app.kubernetes.io/component" "actor-worker" -}}
{{- $_ := set $worker.metadata "annotations" (omit $worker.metadata.annotations "kubectl.kubernetes.io/default-container") -}}
{{- $_ := set $worker.spec "containers" $pod.workerContainers -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  {{- include "tidegate.workloadMetadata" (list $root .service .row.name .name) | nindent 2 }}
spec:
  {{- if not (kindIs "invalid" $pod.replicas) }}
  replicas: {{ int $pod.replicas }}
  {{- end }}
  startupPolicy: LeaderCreated
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration: {maxUnavailable: 1, maxSurge: 0}
  leaderWorkerTemplate:
    size: {{ int $pod.nodes }}
    # A server of several nodes does not survive the loss of one.
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      {{- toYaml $leader | nindent 6 }}
    workerTemplate:
      {{- toYaml $worker | nindent 6 }}
{{- if $root.Values.networkPolicy.enabled }}
---
# Pods of a group reach each other on the ports that the server and NCCL choose.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "tidegate.metadata" (list $root .row.name (printf "%s-group" .name)) | nindent 2 }}
spec:
  podSelector: &group
    matchLabels:
      app.kubernetes.io/name: tidegate
      app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
    matchExpressions:
      - {key: app.kubernetes.io/component, operator: In, values: [actor, actor-worker]}
  policyTypes: [Ingress, Egress]
  ingress:
    - from: [{podSelector: *group}]
  egress:
    - to: [{podSelector: *group}]
    {{- if $root.Values.model.url }}
    # The actor's own policy is not that of the other pods, which load the model as well.
    {{- range $root.Values.networkPolicy.externalEgress }}
    - to: [{ipBlock: {cidr: {{ .cidr }}}}]
      ports: [{port: {{ .port }}}]
    {{- else }}
    - ports: [{port: {{ include "tidegate.modelPort" $root }}}]
    {{- end }}
    {{- end }}
{{- end }}
{{- end -}}
