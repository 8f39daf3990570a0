{{/*
Processes beside a run (`run.track`, `run.callbacks`): a container each in the pod of the page, which reads the page's copy of
the run's records. They have the credentials of `companions.existingSecret` and none of the run; how far each came is in a
volume of its own.
*/}}

{{- define "tidegate.companionContainers" -}}
{{- $copy := printf "/copy/%s" (include "tidegate.runId" .) -}}
{{- range $number, $given := .Values.run.track }}
{{- $entry := include "tidegate.trackEntry" $given | fromYaml }}
{{- $to := printf "--to=%s" ($entry.to | default (printf ".tidegate/%s" $entry.tracker)) }}
{{- $arguments := list "track" $copy (printf "--with=%s" $entry.tracker) $to "--stay" }}
{{ include "tidegate.companion" (list $ (printf "track-%d" $number) "trackers" $arguments false) }}
{{- end }}
{{- range $number, $_ := .Values.run.callbacks }}
{{- $arguments := list "call-back" $copy (printf "--number=%d" $number) (printf "--position=/companions/callback-%d.json" $number) }}
{{ include "tidegate.companion" (list $ (printf "callback-%d" $number) "light" $arguments true) }}
{{- end }}
{{- end -}}

{{/* One of them: (list root name image arguments loadsFiles) */}}
{{- define "tidegate.companion" -}}
{{- $root := index . 0 -}}
- name: {{ index . 1 }}
  image: {{ include "tidegate.ownImage" (list $root (index . 2)) }}
  imagePullPolicy: {{ $root.Values.images.pullPolicy }}
  args: {{ toJson (index . 3) }}
  env:
    - {name: HOME, value: /tmp}
    {{- with $root.Values.commonEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $root.Values.companions.existingSecret }}
  envFrom:
    - secretRef: {name: {{ . }}}
  {{- end }}
  resources:
    {{- toYaml $root.Values.companions.resources | nindent 4 }}
  securityContext:
    {{- include "tidegate.containerSecurity" $root | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  workingDir: /companions
  volumeMounts:
    - {name: copy, mountPath: /copy}
    - {name: companions, mountPath: /companions}
    - {name: tmp-{{ index . 1 }}, mountPath: /tmp}
    {{- if and (index . 4) $root.Values.files.contents }}
    {{- include "tidegate.filesMount" $root | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "tidegate.companionVolumes" -}}
{{- if or .Values.run.track .Values.run.callbacks }}
- name: companions
  {{- if .Values.companions.persistence.enabled }}
  persistentVolumeClaim: {claimName: {{ include "tidegate.name" (list . "companions") }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ .Values.companions.persistence.size }}}
  {{- end }}
{{- range $number, $_ := .Values.run.track }}
- {name: tmp-track-{{ $number }}, emptyDir: {sizeLimit: 256Mi}}
{{- end }}
{{- range $number, $_ := .Values.run.callbacks }}
- {name: tmp-callback-{{ $number }}, emptyDir: {sizeLimit: 256Mi}}
{{- end }}
{{- if and .Values.run.callbacks .Values.files.contents }}
{{ include "tidegate.filesVolume" (list . (include "tidegate.filesName" .)) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The claim of that volume, as a document. */}}
{{- define "tidegate.companionClaim" -}}
{{- $persistence := .Values.companions.persistence -}}
{{- if and (or .Values.run.track .Values.run.callbacks) $persistence.enabled -}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  {{- include "tidegate.metadata" (list . "ui" (include "tidegate.name" (list . "companions")) (ternary (dict "helm.sh/resource-policy" "keep") dict $persistence.retain)) | nindent 2 }}
spec:
  {{- (include "tidegate.claim" (list . "ui" $persistence) | fromYaml).spec | toYaml | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Ports of the trackers' servers, for the network policy of the page's pod. */}}
{{- define "tidegate.trackerPorts" -}}
{{- $ports := list -}}
{{- range .Values.run.track -}}
{{- $entry := include "tidegate.trackEntry" . | fromYaml -}}
{{- if contains "://" ($entry.to | default "") -}}{{- $ports = append $ports (include "tidegate.urlPort" $entry.to | int) -}}
{{- else if eq $entry.tracker "wandb" -}}{{- $ports = append $ports 443 -}}{{- /* WANDB_MODE=online */ -}}
{{- end -}}
{{- end -}}
{{- join " " (uniq $ports) -}}
{{- end -}}

{{/* An entry of `run.track` as a map; a text is the tracker alone. */}}
{{- define "tidegate.trackEntry" -}}
{{- if kindIs "string" . -}}{{ toYaml (dict "tracker" .) }}{{- else -}}{{ toYaml . }}{{- end -}}
{{- end -}}
