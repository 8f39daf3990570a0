{{/*
The volume of a pretrained model (`model` of the values), for actors, the learner and the check of a run.
A folder of a claim or an image is mounted as it is. With a node cache or a URL an init container of each pod fills a folder of
the cache, or of the claim, and the first one of a node or of the claim does the work.
*/}}
{{- define "tidegate.modelFilled" -}}
{{- if or .Values.model.nodeCache .Values.model.url }}true{{ end -}}
{{- end -}}

{{- define "tidegate.hasModel" -}}
{{- if or .Values.model.claim .Values.model.image (include "tidegate.modelFilled" .) }}true{{ end -}}
{{- end -}}

{{/* The model's folder in its volume. One that is filled has the name of its source, so that another source is another folder. */}}
{{- define "tidegate.modelFolder" -}}
{{- if include "tidegate.modelFilled" . -}}
model-{{ printf "%s %s" (.Values.model.url | default .Values.model.claim) .Values.model.path | sha256sum | trunc 12 }}
{{- else -}}
{{ .Values.model.path }}
{{- end -}}
{{- end -}}

{{- define "tidegate.modelVolumes" -}}
{{- $model := .Values.model -}}
{{- if include "tidegate.hasModel" . -}}
- name: model
  {{- if $model.nodeCache }}
  hostPath: {path: {{ $model.nodeCache | quote }}, type: Directory}
  {{- else if $model.image }}
  image: {reference: {{ $model.image | quote }}, pullPolicy: {{ .Values.images.pullPolicy }}}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ $model.claim }}}
  {{- end }}
{{- if and $model.nodeCache $model.claim }}
- name: model-source
  persistentVolumeClaim: {claimName: {{ $model.claim }}, readOnly: true}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "tidegate.modelMounts" -}}
{{- if include "tidegate.hasModel" . -}}
- name: model
  mountPath: {{ .Values.model.mountPath }}
  {{- with include "tidegate.modelFolder" . }}
  subPath: {{ . }}
  {{- end }}
  readOnly: true
{{- end -}}
{{- end -}}

{{/* The container that fills the volume, in the image of its pod: (list root image) */}}
{{- define "tidegate.modelContainer" -}}
{{- $root := index . 0 -}}{{- $model := $root.Values.model -}}
{{- if include "tidegate.modelFilled" $root -}}
- name: model
  image: {{ index . 1 }}
  imagePullPolicy: {{ $root.Values.images.pullPolicy }}
  args:
    - model
    - {{ $model.url | default (printf "/model-source/%s" $model.path) | quote }}
    - --into=/model-volume/{{ include "tidegate.modelFolder" $root }}
    - --deadline={{ $model.deadlineSeconds }}
  env:
    - {name: NVIDIA_VISIBLE_DEVICES, value: void}
    {{- if $model.existingSecret }}
    - {name: TIDEGATE_MODEL_TOKEN, valueFrom: {secretKeyRef: {name: {{ $model.existingSecret }}, key: {{ $model.secretKey }}}}}
    {{- end }}
    {{- with $root.Values.commonEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  resources:
    requests: {cpu: 100m, memory: 256Mi}
    limits: {memory: 1Gi} # what is written counts until it is on disk
  securityContext:
    {{- include "tidegate.containerSecurity" $root | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: model, mountPath: /model-volume}
    - {name: tmp, mountPath: /tmp}
    {{- if and $model.nodeCache $model.claim }}
    - {name: model-source, mountPath: /model-source, readOnly: true}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* The port of the web server that has the model; empty without one. */}}
{{- define "tidegate.modelPort" -}}
{{- with .Values.model.url }}{{ include "tidegate.urlPort" . }}{{ end -}}
{{- end -}}
