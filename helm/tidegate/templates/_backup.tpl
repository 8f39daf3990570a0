{{/*
Backups of the run (`run.backup`): a container beside admission, whose volume has what admission reports of them. It has the
credential of its role alone, and the only one of the bucket.
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
{{- else if .Values.backup.existingSecret -}}
{{- $problems = append $problems "backup.existingSecret is set without run.backup: nothing would use the credentials. Set run.backup to a place, or leave it out" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
