{{/*
Backups of the run (`run.backup`), and volumes that are filled from one (`restore`). Backups are made by a container beside admission, whose volume has what admission reports of them. It has the
credential of its role alone.
*/}}

{{/* The container; nothing without `run.backup`. */}}
{{- define "tidegate.backupContainer" -}}
{{- if .Values.run.backup -}}
- name: backup
  image: {{ include "tidegate.ownImage" (list . "light") }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  args: [backup-pods, --cluster, /etc/tidegate, --data-dir, /data]
  env:
    - {name: TIDEGATE_CLUSTER, value: /etc/tidegate}
    - {name: TIDEGATE_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    {{- if include "tidegate.tls" . }}
    - {name: TIDEGATE_TLS_DIR, value: /etc/tidegate-tls}
    {{- end }}
    {{- with include "tidegate.admissionPods" . }}
    - {name: TIDEGATE_ADMISSION_PODS, value: {{ . | quote }}}
    {{- end }}
    {{- with .Values.commonEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.backup.existingSecret }}
  envFrom:
    - secretRef: {name: {{ . }}}
  {{- end }}
  resources:
    {{- toYaml .Values.backup.resources | nindent 4 }}
  securityContext:
    {{- include "tidegate.containerSecurity" . | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  workingDir: /data
  volumeMounts:
    - {name: config, mountPath: /etc/tidegate, readOnly: true}
    - {name: data, mountPath: /data}
    - {name: backup-tmp, mountPath: /tmp}
    - {name: backup-credentials, mountPath: /etc/tidegate-credentials, readOnly: true}
    {{- include "tidegate.tlsMounts" . | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* Its volumes: small files, since what it copies it streams. */}}
{{- define "tidegate.backupVolumes" -}}
{{- if .Values.run.backup -}}
{{ include "tidegate.callVolume" (list . "backup") | replace "name: credentials" "name: backup-credentials" }}
- {name: backup-tmp, emptyDir: {sizeLimit: 64Mi}}
{{- end -}}
{{- end -}}

{{/* Whether a service's volume is filled from `restore`: (list root service) */}}
{{- define "tidegate.restores" -}}
{{- if and (index . 0).Values.restore.from (has (index . 1) (list "task_queue" "trajectory_store" "learner" "weight_distribution" "admission")) }}true{{ end -}}
{{- end -}}

{{/* Whether a learner's volume that was lost is filled from the newest backup: (list root service) */}}
{{- define "tidegate.restoresIfLost" -}}
{{- if and (index . 0).Values.run.backup (eq (index . 1) "learner") (not (include "tidegate.restores" .)) }}true{{ end -}}
{{- end -}}

{{/* The container that fills it, before all others: (list root service) */}}
{{- define "tidegate.restoreContainer" -}}
{{- $root := index . 0 -}}
{{- $lost := include "tidegate.restoresIfLost" . -}}
{{- if or $lost (include "tidegate.restores" .) -}}
- name: restore
  image: {{ include "tidegate.ownImage" (list $root "light") }}
  imagePullPolicy: {{ $root.Values.images.pullPolicy }}
  args:
    - restore-volume
    - {{ index . 1 }}
    {{- if $lost }}
    - --from={{ include "tidegate.backupPlace" $root }}
    - --if-lost
    {{- else }}
    - --from={{ $root.Values.restore.from }}
    - --number={{ int $root.Values.restore.number }}
    {{- end }}
    - --cluster=/etc/tidegate
    - --data-dir=/data
  env:
    {{- include "tidegate.env" . | nindent 4 }}
    {{- with $root.Values.commonEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $root.Values.backup.existingSecret }}
  envFrom:
    - secretRef: {name: {{ . }}}
  {{- end }}
  resources:
    {{- toYaml $root.Values.backup.resources | nindent 4 }}
  securityContext:
    {{- include "tidegate.containerSecurity" $root | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  workingDir: /data
  volumeMounts:
    - {name: config, mountPath: /etc/tidegate, readOnly: true}
    - {name: data, mountPath: /data}
    - {name: tmp, mountPath: /tmp}
    {{- include "tidegate.brokerMount" $root | nindent 4 }}
    {{- include "tidegate.tlsMounts" $root | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* The place of `run.backup`, which is a text or a section. */}}
{{- define "tidegate.backupPlace" -}}
{{- if kindIs "map" .Values.run.backup }}{{ .Values.run.backup.to }}{{ else }}{{ .Values.run.backup }}{{ end -}}
{{- end -}}

{{- define "tidegate.backupProblems" -}}
{{- $problems := list -}}
{{- if .Values.run.backup -}}
{{- $place := include "tidegate.backupPlace" . -}}
{{- if not (regexMatch "^(s3|gs|az)://" $place) -}}
{{- $problems = append $problems (printf "run.backup is %s, a folder of one pod, which is lost with it. Name a bucket: s3://, gs:// or az://" $place) -}}
{{- end -}}
{{- if not .Values.admission.persistence.enabled -}}
{{- $problems = append $problems "run.backup is set and admission.persistence.enabled false: which backup is the newest would be forgotten with each restart. Set it to true" -}}
{{- end -}}
{{- else if and .Values.backup.existingSecret (not .Values.restore.from) -}}
{{- $problems = append $problems "backup.existingSecret is set without run.backup and restore.from: nothing would use the credentials. Set run.backup to a place, or leave it out" -}}
{{- end -}}
{{- $restore := .Values.restore -}}
{{- if $restore.from -}}
{{- if not (regexMatch "^(s3|gs|az)://" $restore.from) -}}
{{- $problems = append $problems (printf "restore.from is %s, which pods cannot read. Name the bucket of the backups: s3://, gs:// or az://" $restore.from) -}}
{{- end -}}
{{- if kindIs "invalid" $restore.number -}}
{{- $problems = append $problems "restore.from is set and restore.number is not: all volumes must be of one backup. `tidegate restore PLACE --list` names them" -}}
{{- end -}}
{{- range $section := list "taskQueue" "trajectoryStore" "learner" "weightDistribution" "admission" -}}
{{- if not (get $.Values $section).persistence.enabled -}}
{{- $problems = append $problems (printf "restore.from is set and %s.persistence.enabled false: each new pod would begin at the backup again, and not where the run is. Set it to true" $section) -}}
{{- end -}}
{{- end -}}
{{- if and (include "tidegate.learnerIsJobSet" .) (gt (include "tidegate.learnerPods" . | int) 1) -}}
{{- $problems = append $problems (printf "restore.from is set and the learner is a %s of several pods, which share a volume that cannot be filled. Restore with learner.kind StatefulSet" .Values.learner.kind) -}}
{{- end -}}
{{- else if not (kindIs "invalid" $restore.number) -}}
{{- $problems = append $problems "restore.number is set without restore.from: set the place of the backups" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
