{{/* Everything one service needs: its account, Service, workload and disruption budget: (list root "task_queue"). Nothing
where the release has no such service. */}}
{{- define "tidegate.service" -}}
{{- $root := index . 0 -}}
{{- $service := index . 1 -}}
{{- $row := get (include "tidegate.services" $root | fromYaml) $service -}}
{{- if $row -}}
{{- $pod := include "tidegate.pod" (list $root $row) | fromYaml -}}
{{- $name := include "tidegate.name" (list $root $row.name) -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "tidegate.metadata" (list $root $row.name $name ($pod.serviceAccountAnnotations | default dict)) | nindent 2 }}
automountServiceAccountToken: false
{{- if $row.called }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "tidegate.metadata" (list $root $row.name $name) | nindent 2 }}
spec:
  type: ClusterIP
  {{- if $row.scalable }}
  clusterIP: None # its pods are balanced by the callers: one connection would stay with one pod
  {{- end }}
  selector:
    {{- include "tidegate.selector" (list $root $row.name) | nindent 4 }}
    {{- if and (eq $service "learner") (not (include "tidegate.hasStandbys" (list $root $service))) }}
    {{- if include "tidegate.learnerIsJobSet" $root }}
    batch.kubernetes.io/job-completion-index: "0" # the rank that serves
    {{- else }}
    statefulset.kubernetes.io/pod-name: {{ $name }}-0 # the rank that serves
    {{- end }}
    {{- else if and (eq $service "admission") (include "tidegate.admissionPods" $root) }}
    tidegate.dev/leader: "true" # the pod that holds the Lease labels itself
    {{- end }}
  ports:
    - {name: grpc, port: 7700, targetPort: grpc, appProtocol: grpc}
{{- end }}
{{- if include "tidegate.hasStandbys" (list $root $service) }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "tidegate.metadata" (list $root $row.name (printf "%s-pods" $name)) | nindent 2 }}
spec:
  clusterIP: None # callers connect to every pod, and call the one that works
  publishNotReadyAddresses: true # they ask each about its health themselves
  selector:
    {{- include "tidegate.selector" (list $root $row.name) | nindent 4 }}
  ports:
    - {name: grpc, port: 7700, targetPort: grpc, appProtocol: grpc}
{{- end }}
{{- if eq $service "learner" }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "tidegate.metadata" (list $root $row.name (printf "%s-ranks" $name)) | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true # ranks find each other before any of them is ready
  selector:
    {{- include "tidegate.selector" (list $root $row.name) | nindent 4 }}
  ports:
    - {name: rendezvous, port: 29400, targetPort: rendezvous}
{{- end }}
---
{{ include "tidegate.workload" (dict "root" $root "service" $service "row" $row "pod" $pod "name" $name "pool" "main") }}
{{- $pools := $pod.pools | default dict }}
{{- range $pool, $overrides := $pools }}
---
{{ include "tidegate.workload" (dict "root" $root "service" $service "row" $row "pod" (mergeOverwrite (deepCopy $pod) $overrides) "name" (printf "%s-%s" $name $pool) "pool" $pool) }}
{{- end }}
{{- if ($pod.pdb | default dict).enabled }}
---
{{ include "tidegate.pdb" (list $root $row.name $name $pod.pdb) }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "tidegate.pdb" -}}
{{- $root := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "tidegate.metadata" (list $root (index . 1) (index . 2)) | nindent 2 }}
spec:
  maxUnavailable: {{ (index . 3).maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow # a pod that never gets ready must not hold a node
  selector:
    matchLabels:
      {{- include "tidegate.selector" (list $root (index . 1)) | nindent 6 }}
{{- end -}}

{{/* One workload: (dict "root" "service" "row" "pod" "name" "pool") */}}
{{- define "tidegate.workload" -}}
{{- if and (eq .service "learner") (include "tidegate.learnerIsJobSet" .root) -}}
{{ include "tidegate.learnerOfOthers" . }}
{{- else if and (eq .service "actor") (gt (int .pod.nodes) 1) -}}
{{ include "tidegate.leaderWorkerSet" . }}
{{- else -}}
{{ include "tidegate.ownWorkload" . }}
{{- end -}}
{{- end -}}

{{/* One Deployment or StatefulSet: as above. */}}
{{- define "tidegate.ownWorkload" -}}
{{- $root := .root -}}{{- $row := .row -}}{{- $pod := .pod -}}{{- $service := .service -}}
{{- $isMovable := ne (include "tidegate.isMovable" (list $root $service $pod)) "" -}}
{{- if $isMovable }}{{ $pod = include "tidegate.movablePod" $pod | fromYaml }}{{ end -}}
{{- $replicas := 1 -}}
{{- if eq $service "learner" }}{{ $replicas = add (include "tidegate.learnerPods" $root | int) (int $root.Values.learner.standbys) | int }}{{ end -}}
{{- if eq $service "admission" }}{{ $replicas = int $pod.replicas }}{{ end -}}
apiVersion: apps/v1
kind: {{ ternary "Deployment" "StatefulSet" (or $row.scalable $isMovable) }}
metadata:
  {{- include "tidegate.workloadMetadata" (list $root $service $row.name .name) | nindent 2 }}
spec:
  {{- if $row.scalable }}
  {{- if not (kindIs "invalid" $pod.replicas) }}
  replicas: {{ int $pod.replicas }}
  {{- end }}
  strategy:
    {{- toYaml (ternary (omit $pod.strategy "rollingUpdate") $pod.strategy (eq $pod.strategy.type "Recreate")) | nindent 4 }}
  # Pods that start within their budget are no failed rollout; ten minutes are for the node and the image.
  progressDeadlineSeconds: {{ include "tidegate.progressSeconds" (list $root $service $pod) }}
  {{- else if $isMovable }}
  replicas: {{ int $pod.replicas }}
  {{- if gt (int $pod.replicas) 1 }}
  # A new pod stands by before an old one ends.
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  {{- else }}
  strategy: {type: Recreate}
  {{- end }}
  progressDeadlineSeconds: {{ include "tidegate.progressSeconds" (list $root $service $pod) }}
  {{- else }}
  replicas: {{ $replicas }}
  serviceName: {{ ternary (printf "%s-ranks" .name) .name (eq $service "learner") }}
  # No rank is ready before all of them have started; and an ordered upgrade would block on a pod that crashes.
  podManagementPolicy: Parallel
  {{- if and (gt $replicas 1) (eq $service "learner") (not (include "tidegate.hasStandbys" (list $root $service))) }}
  # All at once: ranks of two versions refuse each other, so the first new pod would never be ready.
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 100%}}
  {{- else }}
  updateStrategy: {type: RollingUpdate}
  {{- end }}
  {{- if $pod.persistence.enabled }}
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: {{ ternary "Retain" "Delete" $pod.persistence.retain }}
    whenScaled: Retain
  {{- end }}
  {{- end }}
  revisionHistoryLimit: 5
  selector:
    matchLabels:
      {{- include "tidegate.selector" (list $root $row.name) | nindent 6 }}
      {{- if eq $service "actor" }}
      tidegate.dev/pool: {{ .pool }}
      {{- end }}
  template:
    {{- include "tidegate.podTemplate" (merge (dict "pod" $pod) .) | nindent 4 }}
  {{- if and (not $row.scalable) $pod.persistence.enabled }}
  volumeClaimTemplates:
    - {{ include "tidegate.claim" (list $root $row.name $pod.persistence) | nindent 6 | trim }}
  {{- end }}
{{- end -}}

{{/* How long a pod of a Deployment may take: (list root service pod) */}}
{{- define "tidegate.progressSeconds" -}}
{{- $root := index . 0 -}}
{{- $fills := and (eq (index . 1) "actor") (include "tidegate.modelFilled" $root) -}}
{{- add 600 (index . 2).startupBudgetSeconds (ternary $root.Values.model.deadlineSeconds 0 (ne (default "" $fills) "")) -}}
{{- end -}}

{{/* A volume claim named data: (list root component persistence) */}}
{{- define "tidegate.claim" -}}
{{- $root := index . 0 -}}{{- $persistence := index . 2 -}}
metadata:
  name: data
  labels:
    {{- include "tidegate.selector" (list $root (index . 1)) | nindent 4 }}
spec:
  accessModes:
    {{- toYaml $persistence.accessModes | nindent 4 }}
  {{- with $persistence.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ $persistence.size }}
{{- end -}}

{{- define "tidegate.podTemplate" -}}
{{- $root := .root -}}{{- $row := .row -}}{{- $pod := .pod -}}{{- $service := .service -}}
{{- $learnerPods := 1 -}}
{{- if eq $service "learner" }}{{ $learnerPods = include "tidegate.learnerPods" $root | int }}{{ end -}}
{{- $ranksInPod := include "tidegate.ranksInPod" $root | int -}}
{{- $gpu := int $pod.gpu -}}
{{- $health := ternary 7701 7700 (ne (include "tidegate.tls" $root) "") -}}
{{- $kubernetes := and (eq $service "admission") $root.Values.admission.kubernetes.enabled -}}
{{- $gateway := and (eq $service "actor") $root.Values.actor.gateway.enabled -}}
{{- $sandbox := $pod.sandbox | default dict -}}
{{- $sandboxPods := and (eq $service "environment") (ne (include "tidegate.sandboxNamespace" $root) "") -}}
{{- $image := include "tidegate.ownImage" (list $root (include "tidegate.imageKey" (list $root $service $pod))) -}}
{{- $learner := include "tidegate.name" (list $root "learner") -}}
{{- $loads := include "tidegate.loadsFiles" (list $root $service) -}}
{{- $documents := printf "%s\n%s" (include "tidegate.readAtStart" (list $root $service)) (include "tidegate.clusterDocument" $root) -}}
metadata:
  labels:
    {{- include "tidegate.labels" (list $root $row.name $pod.podLabels) | nindent 4 }}
    {{- if eq $service "actor" }}
    tidegate.dev/pool: {{ .pool }}
    {{- end }}
    {{- if and $root.Values.kueue.queueName (has $service (list "actor" "learner")) }}
    kueue.x-k8s.io/queue-name: {{ $root.Values.kueue.queueName }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: {{ $row.name }}
    checksum/config: {{ sha256sum $documents }}
    {{- with $pod.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "tidegate.name" (list $root $row.name) }}
  automountServiceAccountToken: {{ or $kubernetes $sandboxPods }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add (include "tidegate.drainTimeoutSeconds" $root) 20 $pod.preStopSleepSeconds }}
  {{- if $sandbox.userNamespace }}
  hostUsers: false
  {{- end }}
  {{- if $pod.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- if $pod.hostIPC }}
  hostIPC: true
  {{- end }}
  securityContext:
    {{- include "tidegate.overridden" (list (include "tidegate.podContext" (list $root $sandbox)) $pod.podSecurityContext) | nindent 4 }}
  {{- include "tidegate.pullSecrets" $root | nindent 2 }}
  {{- include "tidegate.placement" (list $root $row $pod) | nindent 2 }}
  {{- with $pod.resourceClaims }}
  resourceClaims:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $reads := has $service (list "actor" "learner") -}}
  {{- $first := ternary (include "tidegate.modelContainer" (list $root $image)) "" $reads }}
  {{- $restore := include "tidegate.restoreContainer" (list $root $service) -}}
  {{- if or $restore $first $pod.initContainers }}
  initContainers:
    {{- with $restore }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $first }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $pod.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ $row.name }}
      image: {{ $image }}
      imagePullPolicy: {{ $root.Values.images.pullPolicy }}
      args: [serve, {{ $service }}, --cluster, /etc/tidegate, --data-dir, /data]
      env:
        {{- include "tidegate.env" (list $root $service) | nindent 8 }}
        {{- if $kubernetes }}
        - {name: TIDEGATE_KUBERNETES, value: "1"}
        - {name: TIDEGATE_RELEASE, value: {{ $root.Release.Name | quote }}}
        {{- if eq (include "tidegate.ranksActors" $root) "true" }}
        - {name: TIDEGATE_RANK_ACTORS, value: "1"}
        {{- end }}
        - {name: TIDEGATE_LEASE, value: {{ include "tidegate.name" (list $root "admission") }}-leader}
        {{- with include "tidegate.admissionPods" $root }}
        - {name: TIDEGATE_ADMISSION_PODS, value: {{ . | quote }}}
        {{- end }}
        {{- if $root.Values.admission.kubernetes.endsRun }}
        - {name: TIDEGATE_LEARNER, value: {{ $learner }}}
        {{- if include "tidegate.learnerIsJobSet" $root }}
        - {name: TIDEGATE_LEARNER_KIND, value: {{ $root.Values.learner.kind }}}
        {{- end }}
        {{- end }}
        {{- if $root.Values.crd.enabled }}
        - {name: TIDEGATE_CRD, value: "1"}
        - {name: TIDEGATE_TRAINING_RUN, value: {{ include "tidegate.fullname" $root }}}
        {{- end }}
        - name: TIDEGATE_ACTOR_DEPLOYMENTS
          value: {{ include "tidegate.actorDeployments" $root }}
        {{- end }}
        {{- if $sandboxPods }}
        - {name: TIDEGATE_RELEASE, value: {{ $root.Release.Name | quote }}}
        - {name: TIDEGATE_SANDBOX_IMAGE, value: {{ $image | quote }}}
        {{- end }}
        {{- if $gateway }}
        - {name: TIDEGATE_GATEWAY_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: TIDEGATE_GATEWAY_KEY, valueFrom: {secretKeyRef: {name: {{ include "tidegate.gatewaySecret" $root }}, key: {{ $pod.gateway.secretKey }}}}}
        {{- end }}
        {{- if has $service (list "task_queue" "trajectory_store") }}
        - {name: TIDEGATE_TASK_SECRET, value: /etc/tidegate-credentials/tasks.secret}
        {{- end }}
        {{- if and (eq $service "learner") (gt $ranksInPod 1) }}
        # A rank for each GPU, in one container. A rank that ends, ends all of them.
        - {name: TIDEGATE_RANKS_IN_POD, value: {{ $ranksInPod | quote }}}
        {{- end }}
        {{- if gt $learnerPods 1 }}
        # Its name numbers each pod. A rank that ends, ends its pod: Kubernetes restarts it, and the group forms again.
        - {name: WORLD_SIZE, value: {{ mul $learnerPods $ranksInPod | quote }}}
        - {name: MASTER_ADDR, value: {{ $learner }}-{{ ternary (printf "%s-0-0" (include "tidegate.learnerJob" $root)) "0" (eq (include "tidegate.learnerIsJobSet" $root) "true") }}.{{ $learner }}-ranks}
        - {name: MASTER_PORT, value: "29400"}
        {{- end }}
        {{- if eq $gpu 0 }}
        - {name: NVIDIA_VISIBLE_DEVICES, value: void}
        {{- else }}
        # `device: auto` fails here without a usable GPU, instead of computing on the CPU.
        - {name: TIDEGATE_DEVICE, value: cuda}
        {{- end }}
        {{- with include "tidegate.postgresEnv" (list $root $service) }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with concat $root.Values.commonEnv $pod.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: grpc, containerPort: 7700}
        {{- if include "tidegate.tls" $root }}
        - {name: health, containerPort: 7701}
        {{- end }}
        {{- if $gateway }}
        - {name: gateway, containerPort: {{ include "tidegate.gatewayPort" $root }}}
        {{- end }}
        {{- if eq $service "learner" }}
        - {name: rendezvous, containerPort: 29400}
        {{- end }}
      startupProbe:
        grpc: {port: {{ $health }}, service: startup}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ max 1 (div $pod.startupBudgetSeconds 5) }}
      readinessProbe:
        grpc: {port: {{ $health }}, service: readiness}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      livenessProbe:
        grpc: {port: {{ $health }}, service: liveness}
        periodSeconds: 20
        timeoutSeconds: 10
        failureThreshold: 6
      {{- if $pod.preStopSleepSeconds }}
      lifecycle:
        preStop: {sleep: {seconds: {{ $pod.preStopSleepSeconds }}}}
      {{- end }}
      resources:
        {{- include "tidegate.resources" $pod | nindent 8 }}
      securityContext:
        {{- include "tidegate.overridden" (list (include "tidegate.serviceSecurity" $pod) $pod.securityContext) | nindent 8 }}
      terminationMessagePolicy: FallbackToLogsOnError
      workingDir: /data
      volumeMounts:
        - {name: config, mountPath: /etc/tidegate, readOnly: true}
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
        {{- include "tidegate.callMount" $root | nindent 8 }}
        {{- include "tidegate.brokerMount" $root | nindent 8 }}
        {{- include "tidegate.tlsMounts" $root | nindent 8 }}
        {{- if $pod.sharedMemory }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
        {{- if $reads }}
        {{- include "tidegate.modelMounts" $root | nindent 8 }}
        {{- end }}
        {{- if $loads }}
        {{- include "tidegate.filesMount" $root | nindent 8 }}
        {{- end }}
        {{- with $pod.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- if eq $service "admission" }}
    {{- with include "tidegate.backupContainer" $root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- with $pod.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - {name: config, configMap: {name: {{ include "tidegate.name" (list $root "run") }}}}
    - {name: tmp, emptyDir: {sizeLimit: 1Gi}}
    {{- /* Operators work in admission's pod. */}}
    {{- include "tidegate.callVolume" (concat (list $root $service) (ternary (list "operator") list (eq $service "admission"))) | nindent 4 }}
    {{- include "tidegate.brokerVolume" (list $root $service) | nindent 4 }}
    {{- include "tidegate.tlsVolumes" (list $root $row.name) | nindent 4 }}
    {{- if eq $service "admission" }}
    {{- with include "tidegate.backupVolumes" $root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- if $row.scalable }}
    - {name: data, emptyDir: {sizeLimit: {{ $pod.scratch.size }}}}
    {{- else if not $pod.persistence.enabled }}
    - {name: data, emptyDir: {sizeLimit: {{ $pod.persistence.size }}}}
    {{- end }}
    {{- if $pod.sharedMemory }}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ $pod.sharedMemory }}}}
    {{- end }}
    {{- if $reads }}
    {{- include "tidegate.modelVolumes" $root | nindent 4 }}
    {{- end }}
    {{- if $loads }}
    {{- include "tidegate.filesVolume" (list $root (include "tidegate.filesName" $root)) | nindent 4 }}
    {{- end }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The pod's security context, before what the values override: (list root sandbox) */}}
{{- define "tidegate.podContext" -}}
{{ include "tidegate.podUser" (index . 0) }}
{{ include "tidegate.podProfiles" (index . 1) }}
{{- end -}}

{{/* YAML with the keys of a value laid over it; a key that is null there is left out: (list text value) */}}
{{- define "tidegate.overridden" -}}
{{- $context := index . 0 | fromYaml -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "invalid" $value }}{{ $context = omit $context $key }}{{ else if kindIs "map" $value }}{{ $_ := set $context $key (merge (deepCopy $value) (get $context $key | default dict)) }}{{ else }}{{ $_ := set $context $key $value }}{{ end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{/* Environment variables of a Tidegate container: its identity and the broker: (list root service) */}}
{{- define "tidegate.env" -}}
{{- $root := index . 0 -}}
{{- $user := $root.Values.nats.auth.user | default (index . 1 | replace "_" "-") -}}
- {name: TIDEGATE_CLUSTER, value: /etc/tidegate}
- {name: TIDEGATE_POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: TIDEGATE_POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: TIDEGATE_NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: TIDEGATE_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: "k8s.namespace.name=$(TIDEGATE_NAMESPACE),k8s.pod.name=$(TIDEGATE_POD_NAME),k8s.pod.uid=$(TIDEGATE_POD_UID),k8s.node.name=$(TIDEGATE_NODE_NAME)"}
- {name: TIDEGATE_BROKER_USER, value: {{ $user }}}
- {name: TIDEGATE_BROKER_PASSWORD_PATH, value: /etc/tidegate-broker-user/password}
{{- if include "tidegate.tls" $root }}
- {name: TIDEGATE_TLS_DIR, value: /etc/tidegate-tls}
{{- end }}
{{- if include "tidegate.brokerTls" $root }}
- {name: TIDEGATE_BROKER_TLS_DIR, value: /etc/tidegate-tls}
{{- end }}
{{- if and (eq $root.Values.nats.mode "external") $root.Values.nats.tls.existingSecret }}
- {name: SSL_CERT_FILE, value: /etc/tidegate-broker/ca.crt}
{{- end }}
{{- end -}}

{{/* The Deployments that admission may read and scale, comma-separated. */}}
{{- define "tidegate.actorDeployments" -}}
{{- $name := include "tidegate.name" (list . "actor") -}}
{{- $names := list $name -}}
{{- range $pool, $_ := .Values.actor.pools }}{{ $names = append $names (printf "%s-%s" $name $pool) }}{{ end -}}
{{- join "," $names -}}
{{- end -}}

{{- define "tidegate.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if and (gt (int .gpu) 0) .gpuResource -}}
{{- $_ := set $resources "limits" (merge (dict .gpuResource (int .gpu)) ($resources.limits | default dict)) -}}
{{- end -}}
{{- if (.rdma | default dict).resource -}}
{{- $_ := set $resources "limits" (merge (dict .rdma.resource (int .rdma.count)) ($resources.limits | default dict)) -}}
{{- end -}}
{{- if .resourceClaims -}}
{{- $claims := list -}}
{{- range .resourceClaims }}{{ $claims = append $claims (dict "name" .name) }}{{ end -}}
{{- $_ := set $resources "claims" $claims -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Scheduling: priority, runtime class, node selection, spreading: (list root row pod) */}}
{{- define "tidegate.placement" -}}
{{- $root := index . 0 -}}{{- $row := index . 1 -}}{{- $pod := index . 2 -}}
{{- if $pod.priorityClassName }}
priorityClassName: {{ $pod.priorityClassName }}
{{- else if and $root.Values.priorityClasses.create $row.priority }}
priorityClassName: {{ include "tidegate.priorityClass" (list $root $row.priority) }}
{{- end }}
{{- with $pod.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- else }}
{{- if or (and (eq $row.name "admission") (include "tidegate.admissionPods" $root)) (include "tidegate.hasStandbys" (list $root ($row.name | replace "-" "_"))) }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "tidegate.selector" (list $root $row.name) | nindent 14 }}
{{- end }}
{{- end }}
{{- with $pod.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{ mergeOverwrite (dict "labelSelector" (dict "matchLabels" (include "tidegate.selector" (list $root $row.name) | fromYaml))) . | toYaml | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* PriorityClass names are cluster-wide, so they contain the namespace, and may have 253 letters: (list root "control") */}}
{{- define "tidegate.priorityClass" -}}
{{- $root := index . 0 -}}
{{- printf "%s-%s-%s" $root.Release.Namespace (include "tidegate.fullname" $root) (index . 1) -}}
{{- end -}}

{{/* The container's security context of a service: memory that RDMA registers may not be swapped out. */}}
{{- define "tidegate.serviceSecurity" -}}
{{- $context := include "tidegate.containerSecurity" . | fromYaml -}}
{{- if (.rdma | default dict).resource -}}
{{- $_ := set $context.capabilities "add" (list "IPC_LOCK") -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}
