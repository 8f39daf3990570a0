{{/* First part of every object's name: room for the longest component and the hash
in the label of a StatefulSet's pods within 63. */}}
{{- define "tidegate.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 32 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of a component's objects: (list root "task-queue") */}}
{{- define "tidegate.name" -}}
{{- $root := index . 0 -}}
{{- printf "%s-%s" (include "tidegate.fullname" $root) (index . 1) -}}
{{- end -}}

{{- define "tidegate.runId" -}}
{{- $given := printf "%s-%s" .Values.run.run .Release.Name | lower | replace "." "-" | trunc 48 | trimSuffix "-" -}}
{{- .Values.runId | default $given -}}
{{- end -}}

{{/* Selector labels, which never change during the life of an object: (list root component) */}}
{{- define "tidegate.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* All labels of an object: (list root component [labels]). The given ones go before `commonLabels`. */}}
{{- define "tidegate.labels" -}}
{{- $root := index . 0 -}}
{{- $given := dict -}}
{{- if gt (len .) 2 }}{{ $given = index . 2 | default dict }}{{ end -}}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/part-of" "app.kubernetes.io/managed-by" "app.kubernetes.io/version" "helm.sh/chart" "tidegate.dev/pool" -}}
{{- if $root.Values.kueue.queueName }}{{ $own = append $own "kueue.x-k8s.io/queue-name" }}{{ end -}}
{{- $given = merge (deepCopy $given) $root.Values.commonLabels -}}
{{- range $key := keys $given | sortAlpha }}
{{- if has $key $own }}
{{- fail (printf "commonLabels or podLabels: the chart itself sets %s, and selects pods by it; choose another key" $key) }}
{{- end }}
{{- end -}}
{{ include "tidegate.selector" (list $root (index . 1)) }}
app.kubernetes.io/part-of: tidegate
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $given }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The metadata of an object: (list root component name [annotations [labels]]) */}}
{{- define "tidegate.metadata" -}}
{{- $root := index . 0 -}}
{{- $annotations := dict -}}
{{- if gt (len .) 3 }}{{ $annotations = index . 3 }}{{ end -}}
{{- $annotations = merge (deepCopy $annotations) $root.Values.commonAnnotations -}}
name: {{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- $labels := dict }}
  {{- if gt (len .) 4 }}{{ $labels = index . 4 }}{{ end }}
  {{- include "tidegate.labels" (list $root (index . 1) $labels) | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* registry/repository:tag@digest: (list root image defaultTag). The image's own registry goes before the one of all. */}}
{{- define "tidegate.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- with $image.registry | default $root.Values.global.imageRegistry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- $image.repository -}}:{{ $image.tag | default (index . 2) }}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* One of Tidegate's own images by its key under `images`: (list root "light") */}}
{{- define "tidegate.ownImage" -}}
{{- $root := index . 0 -}}
{{- $tag := $root.Values.images.tag | default $root.Chart.AppVersion -}}
{{- $image := merge (dict "registry" $root.Values.images.registry) (index $root.Values.images (index . 1)) -}}
{{- include "tidegate.image" (list $root $image $tag) -}}
{{- end -}}

{{- define "tidegate.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* PodSecurity "restricted", and a read-only root file system. */}}
{{- define "tidegate.podSecurity" -}}
{{ include "tidegate.podUser" . }}
{{ include "tidegate.podProfiles" dict }}
{{- end -}}

{{/* The same of a pod of a Job, which has no section of its own. */}}
{{- define "tidegate.jobSecurity" -}}
{{ include "tidegate.overridden" (list (include "tidegate.podSecurity" .) .Values.podDefaults.podSecurityContext) }}
{{- end -}}

{{- define "tidegate.commonEnv" -}}
{{- with .Values.commonEnv }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* With `arbitraryUser` the cluster chooses the user, as OpenShift does by namespace. */}}
{{- define "tidegate.podUser" -}}
runAsNonRoot: true
{{- if not .Values.arbitraryUser }}
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
{{- end }}
fsGroupChangePolicy: OnRootMismatch
{{- end -}}

{{/* The pod's security context; for environments with the profiles of their section `sandbox`. */}}
{{- define "tidegate.podProfiles" -}}
{{- if .seccompProfile -}}
seccompProfile: {type: Localhost, localhostProfile: {{ .seccompProfile | quote }}}
{{- else -}}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- with .appArmorProfile }}
appArmorProfile: {type: Localhost, localhostProfile: {{ . | quote }}}
{{- end }}
{{- end -}}

{{/* The namespace of the pods that run model-written code; empty where the run file chooses the sandbox `linux`. */}}
{{- define "tidegate.sandboxNamespace" -}}
{{- $isolation := (.Values.run.environment | default dict).isolation | default dict -}}
{{- if eq ($isolation.kind | default "linux") "pods" }}{{ $isolation.namespace }}{{ end -}}
{{- end -}}

{{- define "tidegate.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* How long a Job that has ended stays, for its log; without a limit it stays until the release is uninstalled. */}}
{{- define "tidegate.jobTtl" -}}
{{- if not (kindIs "invalid" .Values.jobTtlSeconds) -}}
ttlSecondsAfterFinished: {{ int .Values.jobTtlSeconds }}
{{- end -}}
{{- end -}}

{{- define "tidegate.drainTimeoutSeconds" -}}
{{- /* The run file's own default; a test holds the two together. */ -}}
{{- .Values.run.drain_timeout_s | default 10 | float64 | ceil | int -}}
{{- end -}}

{{- define "tidegate.brokerUrl" -}}
{{- if eq .Values.nats.mode "external" -}}
{{- required "nats.mode is external: set nats.url to nats://host:4222" .Values.nats.url -}}
{{- else -}}
{{ ternary "tls" "nats" (eq (include "tidegate.brokerTls" .) "true") }}://{{ include "tidegate.name" (list . "nats") }}:4222
{{- end -}}
{{- end -}}

{{- define "tidegate.brokerSecret" -}}
{{- if and (eq .Values.nats.mode "external") (not .Values.nats.auth.existingSecret) -}}
{{- fail "nats.mode is external: set nats.auth.existingSecret to a Secret with the passwords" -}}
{{- end -}}
{{- .Values.nats.auth.existingSecret | default (include "tidegate.name" (list . "nats-auth")) -}}
{{- end -}}

{{/* The Secret with the token of calls of each role. */}}
{{- define "tidegate.callSecret" -}}
{{- .Values.calls.existingSecret | default (include "tidegate.name" (list . "call-auth")) -}}
{{- end -}}

{{/* The call credentials of a pod, written again by the kubelet when they are rotated: (list root role [role]). A role is a
service by its name in the run file, backup or operator; the digests recognise every caller and are no credential. The queue
signs tasks with a secret that only the store has as well. */}}
{{- define "tidegate.callVolume" -}}
{{- $items := list (dict "key" "digests.json" "path" "digests.json") -}}
{{- range rest . -}}
{{- $file := printf "%s.token" . -}}
{{- $items = append $items (dict "key" $file "path" $file) -}}
{{- if has . (list "task_queue" "trajectory_store") -}}
{{- $items = append $items (dict "key" "tasks.secret" "path" "tasks.secret") -}}
{{- end -}}
{{- end -}}
- name: credentials
  secret: {secretName: {{ include "tidegate.callSecret" (first .) }}, defaultMode: 0440, items: {{ toJson $items }}}
{{- end -}}

{{- define "tidegate.callMount" -}}
- {name: credentials, mountPath: /etc/tidegate-credentials, readOnly: true}
{{- end -}}

{{/* Whether a Job makes credentials in this release: the broker's passwords, the tokens of calls, or both. */}}
{{- define "tidegate.makesCredentials" -}}
{{- if or (include "tidegate.makesPasswords" .) (not .Values.calls.existingSecret) }}true{{ end -}}
{{- end -}}

{{- define "tidegate.makesPasswords" -}}
{{- if and (eq .Values.nats.mode "builtin") (not .Values.nats.auth.existingSecret) }}true{{ end -}}
{{- end -}}

{{/* The port of the actors' gateway, from the run file. */}}
{{- define "tidegate.gatewayPort" -}}
{{- $gateway := (.Values.run.actor | default dict).gateway | default dict -}}
{{- if not $gateway.port }}{{ fail "actor.gateway.enabled: set run.actor.gateway.port, where the actors listen" }}{{ end -}}
{{- int $gateway.port -}}
{{- end -}}

{{- define "tidegate.gatewaySecret" -}}
{{- required "actor.gateway.enabled: set actor.gateway.existingSecret to a Secret with the key that opens episodes" .Values.actor.gateway.existingSecret -}}
{{- end -}}

{{/* host:port of the OTLP receiver, or nothing. */}}
{{- define "tidegate.otlpEndpoint" -}}
{{- if eq .Values.collector.mode "builtin" -}}
{{ include "tidegate.name" (list . "collector") }}:4317
{{- else if eq .Values.collector.mode "external" -}}
{{- required "collector.mode is external: set collector.endpoint to host:port" .Values.collector.endpoint -}}
{{- end -}}
{{- end -}}

{{/* Whether admission may write the deletion cost of the actors' pods: the chart's value and the run file's. */}}
{{- define "tidegate.ranksActors" -}}
{{- $scaling := ((.Values.run.admission | default dict).scaling | default dict) -}}
{{- $given := toString $scaling.deletion_cost -}}
{{- if and (eq $given "true") (not .Values.admission.kubernetes.rankActors) }}
{{- fail "run.admission.scaling.deletion_cost is true: set admission.kubernetes.rankActors, which lets admission write it" }}
{{- end -}}
{{- and .Values.admission.kubernetes.enabled .Values.admission.kubernetes.rankActors (ne $given "false") -}}
{{- end -}}

{{/* JSON is YAML, and keeps what Helm's YAML does not: 1073741824 stays an integer. */}}
{{- define "tidegate.document" -}}
{{- . | toPrettyJson | replace "\\u003e" ">" | replace "\\u003c" "<" | replace "\\u0026" "&" -}}
{{- end -}}

{{- define "tidegate.runDocument" -}}
{{- $run := deepCopy .Values.run -}}
{{- $endpoint := include "tidegate.otlpEndpoint" . -}}
{{- if $endpoint -}}
{{- $telemetry := $run.telemetry | default dict -}}
{{- if not $telemetry.otlp_endpoint -}}
{{- $_ := set $run "telemetry" (merge (dict "otlp_endpoint" $endpoint) $telemetry) -}}
{{- end -}}
{{- end -}}
{{- if .Values.files.contents -}}
{{- $_ := set $run "files_dir" .Values.files.mountPath -}}
{{- end -}}
{{- if .Values.actor.gateway.enabled -}}
{{- $_ := include "tidegate.gatewayPort" . -}}
{{- $_ := set $run.actor "gateway" (merge $run.actor.gateway (dict "host" "0.0.0.0")) -}}
{{- end -}}
{{- include "tidegate.document" $run -}}
{{- end -}}

{{/*
The part of the run file that a service reads when it starts: its pods are replaced when this changes, and only then.
A service's own section, and what is shared, less what others alone read and what pods take over while they run
(services/tidegate/runtime/live_settings.py): (list root "task_queue"). tests/chart/test_restarts.py holds it against the
services' code.
*/}}
{{- define "tidegate.readAtStart" -}}
{{- $root := index . 0 -}}{{- $service := index . 1 -}}
{{- $run := include "tidegate.runDocument" $root | fromYaml -}}
{{- $own := get $run $service | default dict -}}
{{- if eq $service "admission" }}{{ $own = omit $own "scaling" }}{{ end -}}
{{- range $section, $_ := include "tidegate.services" $root | fromYaml }}{{ $run = omit $run $section }}{{ end -}}
{{- $run = omit $run "staleness" "slos" "inference" "run" "until" "prices" "broker_port" "pass_env" "cores" -}}
{{- range $section, $readers := include "tidegate.readers" . | fromYaml -}}
{{- if not (has $service $readers) }}{{ $run = omit $run $section }}{{ end -}}
{{- end -}}
{{- include "tidegate.document" (set $run $service $own) -}}
{{- end -}}

{{/* What is shared and read by some services alone. */}}
{{- define "tidegate.readers" -}}
backup: [admission]
batch_size: [task_queue, trajectory_store, learner, admission]
begin_from: [learner]
files_dir: [task_queue, actor, inference, environment, learner]
long_tail: [actor, environment]
policy: [actor, inference, learner]
postgres: [task_queue, trajectory_store]
response: [learner, admission]
seed: [task_queue, actor, environment, trajectory_store, learner]
workload: [task_queue, actor, inference, environment, trajectory_store, learner, admission]
{{- end -}}

{{- define "tidegate.clusterDocument" -}}
{{- $root := . -}}
{{- $addresses := dict -}}
{{- $scaled := dict -}}
{{- range $service, $row := include "tidegate.services" . | fromYaml -}}
{{- if $row.scalable -}}
{{- $kind := ternary "leaderworkerset" "deployment" (and (eq $service "actor") (gt (int $root.Values.actor.nodes) 1)) -}}
{{- $_ := set $scaled $service (printf "%s/%s" $kind (include "tidegate.name" (list $root $row.name))) -}}
{{- end -}}
{{- if $row.called -}}
{{- $format := ternary "dns:///%s-pods:7700" "%s:7700" (ne (include "tidegate.hasStandbys" (list $root $service)) "") -}}
{{- $_ := set $addresses $service (list (printf $format (include "tidegate.name" (list $root $row.name)))) -}}
{{- end -}}
{{- end -}}
{{- $copies := int .Values.nats.streamCopies | default (ternary (int .Values.nats.replicas) 1 (eq .Values.nats.mode "builtin")) -}}
{{- include "tidegate.document" (dict "run_id" (include "tidegate.runId" .) "broker_url" (include "tidegate.brokerUrl" .) "stream_copies" $copies "addresses" $addresses "workloads" (dict "release" .Release.Name "scaled" $scaled)) -}}
{{- end -}}
