{{/* Values that are right one by one and wrong together: all sentences at once, before anything is sent. What only the run
file's types know is checked by the Job in check.yaml. */}}
{{- define "tidegate.validate" -}}
{{- $problems := concat (include "tidegate.nameProblems" . | fromYamlArray) (include "tidegate.brokerProblems" . | fromYamlArray) (include "tidegate.flowProblems" . | fromYamlArray) (include "tidegate.runProblems" . | fromYamlArray) (include "tidegate.scalingProblems" . | fromYamlArray) (include "tidegate.gpuProblems" . | fromYamlArray) (include "tidegate.modelProblems" . | fromYamlArray) (include "tidegate.groupProblems" . | fromYamlArray) (include "tidegate.backupProblems" . | fromYamlArray) (include "tidegate.postgresProblems" . | fromYamlArray) (include "tidegate.uiProblems" . | fromYamlArray) -}}
{{- if $problems }}{{ fail (join "\n" $problems) }}{{ end -}}
{{- end -}}

{{/* Names of Services, which begin with the release's. */}}
{{- define "tidegate.nameProblems" -}}
{{- $problems := list -}}
{{- $name := include "tidegate.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- $problems = append $problems (printf "the release is named %s, and so would Services be, whose names begin with a letter and have no dots. Set fullnameOverride, such as run-%s" .Release.Name (regexReplaceAll "[^a-z0-9]+" $name "-" | trimSuffix "-")) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* Endpoints that their clients cannot reach under the network policies, and addresses that nothing uses. */}}
{{- define "tidegate.flowProblems" -}}
{{- $policy := .Values.networkPolicy -}}{{- $collector := .Values.collector -}}
{{- $problems := list -}}
{{- if $policy.enabled -}}
{{- if and .Values.metrics.serviceMonitor.enabled (eq $collector.mode "builtin") (not $policy.metricsFrom) -}}
{{- $problems = append $problems "metrics.serviceMonitor.enabled and networkPolicy.metricsFrom empty: no Prometheus could reach the collector, and no alert would fire. Set it to labels of Prometheus' namespace, such as {kubernetes.io/metadata.name: monitoring}" -}}
{{- end -}}
{{- if and .Values.keda.enabled (not $policy.scalerFrom) -}}
{{- $problems = append $problems "keda.enabled and networkPolicy.scalerFrom empty: KEDA could not ask admission, and the actors would keep their number. Set it to labels of KEDA's namespace, such as {kubernetes.io/metadata.name: keda}" -}}
{{- end -}}
{{- end -}}
{{- if and $collector.endpoint (ne $collector.mode "external") -}}
{{- $problems = append $problems (printf "collector.endpoint is %s and collector.mode %s, which does not use it. Set collector.mode to external, or leave it out" $collector.endpoint $collector.mode) -}}
{{- end -}}
{{- if and $collector.tracesEndpoint (ne $collector.mode "builtin") -}}
{{- $problems = append $problems (printf "collector.tracesEndpoint is %s and collector.mode %s: only the built-in collector sends traces there. Set collector.mode to builtin, or leave it out" $collector.tracesEndpoint $collector.mode) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tidegate.brokerProblems" -}}
{{- $nats := .Values.nats -}}
{{- $problems := list -}}
{{- if eq $nats.mode "builtin" -}}
{{- $copies := int $nats.streamCopies | default (int $nats.replicas) -}}
{{- if gt $copies (int $nats.replicas) -}}
{{- $problems = append $problems (printf "nats.streamCopies is %d and nats.replicas %d: each copy is on a server of its own. Set nats.replicas to 3, or nats.streamCopies to 0" $copies (int $nats.replicas)) -}}
{{- end -}}
{{- /* The largest sizes of all streams, as services/tidegate/wire/subjects.py has them; a test holds the two together. */ -}}
{{- $needed := div (mul 5008 1048576 (min $copies (int $nats.replicas))) (int $nats.replicas) -}}
{{- $given := include "tidegate.bytes" $nats.fileStoreMax | int64 -}}
{{- if lt $given $needed -}}
{{- $problems = append $problems (printf "nats.fileStoreMax is %v, and the streams of a run need %d MiB on each server: the broker would refuse to create them. Set it to %dMi or more" $nats.fileStoreMax (div $needed 1048576) (div $needed 1048576)) -}}
{{- end -}}
{{- range $key, $value := dict "nats.url" $nats.url "nats.auth.user" $nats.auth.user "nats.tls.existingSecret" $nats.tls.existingSecret -}}
{{- if $value -}}
{{- $problems = append $problems (printf "%s is %s and nats.mode builtin: it is of a broker of your own. Set nats.mode to external, or leave it out" $key $value) -}}
{{- end -}}
{{- end -}}
{{- if gt $given (include "tidegate.bytes" $nats.persistence.size | int64) -}}
{{- $problems = append $problems (printf "nats.fileStoreMax is %v on a volume of %v (nats.persistence.size): the disk would be full before the broker refuses a message. Lower the one or raise the other" $nats.fileStoreMax $nats.persistence.size) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* The run file's own combinations that need no type of its: everything else is the Job's. */}}
{{- define "tidegate.runProblems" -}}
{{- $run := .Values.run -}}
{{- $problems := list -}}
{{- $replay := ((($run.trajectory_store | default dict).replay | default dict).unit | default "none") -}}
{{- if and (eq $replay "none") $run.max_running (gt (int64 $run.batch_size) (int64 $run.max_running)) -}}
{{- $problems = append $problems (printf "run.batch_size is %d and run.max_running %d: a batch would be admitted in several rounds, and its first trajectories wait and grow stale. Set run.max_running to %d or more" (int64 $run.batch_size) (int64 $run.max_running) (int64 $run.batch_size)) -}}
{{- end -}}
{{- range $name := list "track" "callbacks" -}}
{{- if and (get $run $name) (not $.Values.ui.enabled) -}}
{{- $problems = append $problems (printf "run.%s is set and ui.enabled false: what it names runs beside the page, on the page's copy of the run's records. Set ui.enabled to true, or leave run.%s out" $name $name) -}}
{{- end -}}
{{- end -}}
{{- if $run.notify -}}
{{- $problems = append $problems "run.notify is set, and pods post no notices: they are of `tidegate up` on one machine. Use the alert rules with your Alertmanager (rules.enabled), and leave run.notify out" -}}
{{- end -}}
{{- $condition := `[a-z][a-z0-9_]*\s*(>=|<=|>|<)\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?` -}}
{{- if not (regexMatch (printf `^\s*(%s(\s+and\s+%s)*)?\s*$` $condition $condition) ($run.until | default "")) -}}
{{- $problems = append $problems (printf "run.until is %q: it must be statistics, one of >= <= > <, and numbers. Write it such as mean_return>=475, or version_step>=200 and mean_return>=400" $run.until) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tidegate.scalingProblems" -}}
{{- $scaling := ((.Values.run.admission | default dict).scaling | default dict) -}}
{{- $mode := $scaling.mode | default "observe" -}}
{{- $low := ternary $scaling.min_replicas 1 (hasKey $scaling "min_replicas") | int -}}
{{- $high := ternary $scaling.max_replicas 16 (hasKey $scaling "max_replicas") | int -}}
{{- $fixed := not (kindIs "invalid" .Values.actor.replicas) -}}
{{- $problems := list -}}
{{- if gt $low $high -}}
{{- $problems = append $problems (printf "run.admission.scaling: min_replicas %d is above max_replicas %d: swap them" $low $high) -}}
{{- end -}}
{{- range $name := list "keda" "hpa" -}}
{{- $scaler := get $.Values $name -}}
{{- if and $scaler.enabled (gt (int $scaler.minReplicas) (int $scaler.maxReplicas)) -}}
{{- $problems = append $problems (printf "%s.minReplicas is %d and %s.maxReplicas %d: swap them" $name (int $scaler.minReplicas) $name (int $scaler.maxReplicas)) -}}
{{- end -}}
{{- if and $scaler.enabled (eq $mode "controller") -}}
{{- $problems = append $problems (printf "%s.enabled and run.admission.scaling.mode controller: two scalers of the same actors would undo each other's work. Set the mode to %s, or %s.enabled to false" $name (ternary "external" "advise" (eq $name "keda")) $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.keda.enabled (not (has $mode (list "external" "controller"))) -}}
{{- $problems = append $problems (printf "keda.enabled and run.admission.scaling.mode %s: admission would give KEDA no number. Set the mode to external" $mode) -}}
{{- end -}}
{{- if and .Values.keda.enabled .Values.hpa.enabled -}}
{{- $problems = append $problems "keda.enabled and hpa.enabled: two autoscalers would undo each other's work; switch one off" -}}
{{- end -}}
{{- if and $fixed (or .Values.keda.enabled .Values.hpa.enabled) -}}
{{- $problems = append $problems "actor.replicas is set: every upgrade would undo what the autoscaler did; leave it out" -}}
{{- end -}}
{{- if and $fixed (eq $mode "controller") -}}
{{- $problems = append $problems "actor.replicas is set and run.admission.scaling.mode is controller: every upgrade would undo what admission did; leave actor.replicas out" -}}
{{- end -}}
{{- if and (gt (int .Values.admission.replicas) 1) (not .Values.admission.kubernetes.enabled) -}}
{{- $problems = append $problems (printf "admission.replicas is %d and admission.kubernetes.enabled false: its pods could not agree on a leader. Set it to true, or the replicas to 1" (int .Values.admission.replicas)) -}}
{{- end -}}
{{- if and (eq $mode "controller") (not .Values.admission.kubernetes.enabled) -}}
{{- $problems = append $problems "run.admission.scaling.mode is controller and admission.kubernetes.enabled false: admission could not scale the actors. Set it to true, or the mode to advise" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tidegate.gpuProblems" -}}
{{- $learner := .Values.learner -}}
{{- $problems := list -}}
{{- if and $learner.gpuKind (eq (int $learner.gpu) 0) -}}
{{- $problems = append $problems (printf "learner.gpuKind is %s and learner.gpu 0: its pods get no GPU. Set learner.gpu to the GPUs of each pod, or leave gpuKind out" $learner.gpuKind) -}}
{{- end -}}
{{- $pods := include "tidegate.learnerPods" . | int -}}
{{- if int $learner.standbys -}}
{{- if gt $pods 1 -}}
{{- $problems = append $problems (printf "learner.standbys is %d and the learner has ranks in %d pods, which cannot stand by. Set learner.standbys to 0, or learner.ranks to those of one pod (learner.gpu, else 1)" (int $learner.standbys) $pods) -}}
{{- end -}}
{{- if include "tidegate.learnerIsJobSet" . -}}
{{- $problems = append $problems (printf "learner.standbys is %d and learner.kind %s, whose pods are one group. Set learner.standbys to 0, or learner.kind to StatefulSet" (int $learner.standbys) $learner.kind) -}}
{{- end -}}
{{- end -}}
{{- if include "tidegate.learnerIsJobSet" . -}}
{{- if and (gt $pods 1) $learner.persistence.enabled (not (has "ReadWriteMany" $learner.persistence.accessModes)) -}}
{{- $problems = append $problems (printf "learner.kind is %s with %d pods, which share one volume. Set learner.persistence.accessModes to [ReadWriteMany], or learner.kind to StatefulSet, whose pods have a volume each" $learner.kind $pods) -}}
{{- end -}}
{{- else if not (kindIs "invalid" $learner.suspend) -}}
{{- $problems = append $problems "learner.suspend is set and learner.kind StatefulSet, which cannot be suspended. Set learner.kind to JobSet or TrainJob, or pause the run (tidegate pause)" -}}
{{- end -}}
{{- if and (gt (int $learner.gpu) 1) (contains "/mig-" ($learner.gpuResource | default .Values.podDefaults.gpuResource)) -}}
{{- $problems = append $problems (printf "learner.gpu is %d and learner.gpuResource %s: parts of a GPU exchange no tensors, as NCCL does not support them. Set learner.gpu to 1" (int $learner.gpu) ($learner.gpuResource | default .Values.podDefaults.gpuResource)) -}}
{{- end -}}
{{- range $name := list "actor" "learner" -}}
{{- $pod := get $.Values $name -}}
{{- if and $pod.rdma.resource (eq (int $pod.gpu) 0) -}}
{{- $problems = append $problems (printf "%s.rdma.resource is %s and %s.gpu 0: only pods with GPUs exchange tensors over it. Set %s.gpu, or leave rdma out" $name $pod.rdma.resource $name $name) -}}
{{- end -}}
{{- end -}}
{{- $python := (((.Values.run.actor | default dict).server | default dict).python) | default "" -}}
{{- $image := include "tidegate.imageKey" (list . "actor" .Values.actor) -}}
{{- if and (eq (include "tidegate.ownVllm" .) "true") (hasPrefix "/vllm/" $python) (ne $image "actorVllm") -}}
{{- $problems = append $problems (printf "run.actor.server.python is %s and the image of the actors %s, which has no vLLM. Set actor.gpu to the GPUs of each actor, and actor.image to auto" $python $image) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* An actor of several nodes is a LeaderWorkerSet: what reads and scales Deployments does not know it. */}}
{{- define "tidegate.groupProblems" -}}
{{- $actor := .Values.actor -}}{{- $server := (.Values.run.actor | default dict).server | default dict -}}
{{- $problems := list -}}
{{- if gt (int $actor.nodes) 1 -}}
{{- $nodes := printf "actor.nodes is %d" (int $actor.nodes) -}}
{{- if not $actor.workerContainers -}}
{{- $problems = append $problems (printf "%s and actor.workerContainers empty: the other pods of the group would do nothing. Give the containers of the server's other nodes" $nodes) -}}
{{- end -}}
{{- if $server.python -}}
{{- $problems = append $problems (printf "%s and run.actor.server.python set: the actor starts a server on its own node alone. Put the server into actor.extraContainers, and set run.actor.server.url" $nodes) -}}
{{- end -}}
{{- if not $server.update_dir -}}
{{- $problems = append $problems (printf "%s and run.actor.server.update_dir empty: every node of the server loads each version from there. Mount a shared volume by actor.extraVolumes, and name its folder" $nodes) -}}
{{- end -}}
{{- if $actor.pools -}}
{{- $problems = append $problems (printf "%s and actor.pools set: pools are Deployments of one pod each. Install the pools as a release of their own, or leave them out" $nodes) -}}
{{- end -}}
{{- if or .Values.keda.enabled .Values.hpa.enabled .Values.admission.kubernetes.enabled -}}
{{- $problems = append $problems (printf "%s, and keda, hpa or admission.kubernetes is enabled: they read and scale a Deployment. Set them to false; kubectl scale leaderworkerset works" $nodes) -}}
{{- end -}}
{{- else if $actor.workerContainers -}}
{{- $problems = append $problems "actor.workerContainers is set and actor.nodes 1: such an actor has no other pods. Set actor.nodes" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tidegate.modelProblems" -}}
{{- $model := .Values.model -}}
{{- $problems := list -}}
{{- if include "tidegate.hasModel" . -}}
{{- $path := .Values.run.policy.path | default "" -}}
{{- if not (or (eq $path $model.mountPath) (hasPrefix (printf "%s/" $model.mountPath) $path)) -}}
{{- $problems = append $problems (printf "model is set and run.policy.path is %q: pods see the model at model.mountPath, %s. Set run.policy.path to that folder, with run.policy.kind transformers" $path $model.mountPath) -}}
{{- end -}}
{{- if and $model.image (or $model.claim $model.nodeCache $model.url) -}}
{{- $problems = append $problems "model.image and another source of the model: an image is mounted as it is. Leave out model.claim, model.nodeCache and model.url, or model.image" -}}
{{- end -}}
{{- if and $model.url $model.claim $model.nodeCache -}}
{{- $problems = append $problems "model.url, model.claim and model.nodeCache: two sources of one cache. Leave out model.url, or model.claim" -}}
{{- end -}}
{{- if and $model.url (not $model.claim) (not $model.nodeCache) -}}
{{- $problems = append $problems "model.url is set, and no volume to load it into: set model.claim or model.nodeCache" -}}
{{- end -}}
{{- if and $model.nodeCache (not $model.claim) (not $model.url) -}}
{{- $problems = append $problems "model.nodeCache is set, and nothing to fill it from: set model.claim or model.url" -}}
{{- end -}}
{{- end -}}
{{- if and $model.path (not $model.claim) -}}
{{- $problems = append $problems (printf "model.path is %s and model.claim empty: it is a folder of the claim. Set model.claim, or name the folder in run.policy.path" $model.path) -}}
{{- end -}}
{{- if and $model.path $model.url -}}
{{- $problems = append $problems (printf "model.path is %s and model.url is set: a model that is loaded gets a folder of its own. Leave out model.path" $model.path) -}}
{{- end -}}
{{- if and $model.existingSecret (not $model.url) -}}
{{- $problems = append $problems "model.existingSecret is set without model.url, to whose server its token is sent: set model.url, or leave it out" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* A quantity in bytes, as Kubernetes writes it: 512Mi, 9Gi, 1e9 */}}
{{- define "tidegate.bytes" -}}
{{- if kindIs "string" . -}}
{{- $factors := dict "" 1 "m" 0.001 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mulf (regexFind "^[0-9.]+" . | float64) (get $factors (regexReplaceAll "^[0-9.]+" . "") | float64) | int64 -}}
{{- else -}}{{ int64 . }}
{{- end -}}
{{- end -}}
