{{/*
Files that the run file names (`files` of the values): one ConfigMap, mounted read-only by the services that load them and by the
check of a run, with a list of their digests. Its name contains a digest of it, so that pods of an earlier upgrade keep theirs.
*/}}

{{/* Whether a service loads own files: (list root "task_queue") */}}
{{- define "tidegate.loadsFiles" -}}
{{- $root := index . 0 -}}
{{- if and $root.Values.files.contents (has (index . 1) (list "task_queue" "actor" "inference" "environment" "learner")) }}true{{ end -}}
{{- end -}}

{{- define "tidegate.filesName" -}}
{{ include "tidegate.name" (list . "files") }}-{{ include "tidegate.filesData" . | sha256sum | trunc 10 }}
{{- end -}}

{{/* The entry of a file in the ConfigMap, whose keys have no slashes: (list index path) */}}
{{- define "tidegate.fileKey" -}}
{{ printf "%03d-%s" (index . 0) (regexReplaceAll "[^-._a-zA-Z0-9]" (index . 1) "." | trunc 200) }}
{{- end -}}

{{/* `data` and `binaryData` of the ConfigMap. A file that is not what its digest says was changed since it was written here. */}}
{{- define "tidegate.filesData" -}}
{{- $texts := dict -}}{{- $others := dict -}}{{- $digests := dict -}}
{{- range $index, $file := .Values.files.contents -}}
{{- $key := include "tidegate.fileKey" (list $index $file.path) -}}
{{- $content := $file.text | default "" -}}
{{- if $file.base64 -}}
{{- $content = $file.base64 | b64dec -}}
{{- $_ := set $others $key $file.base64 -}}
{{- else -}}
{{- $_ := set $texts $key $content -}}
{{- end -}}
{{- $digest := sha256sum $content -}}
{{- if ne $digest ($file.sha256 | default $digest) -}}
{{- fail (printf "files.contents: %s is not the file whose SHA-256 is %s. Write the values again with `tidegate chart`, or remove its sha256" $file.path (trunc 12 $file.sha256)) -}}
{{- end -}}
{{- if hasKey $digests $file.path -}}
{{- fail (printf "files.contents: %s is given twice. Remove one of them" $file.path) -}}
{{- end -}}
{{- $_ := set $digests $file.path $digest -}}
{{- end -}}
{{- $_ := set $texts "digests" (toJson $digests) -}}
data: {{ toJson $texts }}
{{- with $others }}
binaryData: {{ toJson . }}
{{- end }}
{{- end -}}

{{/* The volume: (list root configMapName) */}}
{{- define "tidegate.filesVolume" -}}
{{- $root := index . 0 -}}
- name: files
  configMap:
    name: {{ index . 1 }}
    items:
      - {key: digests, path: tidegate-files.json}
      {{- range $index, $file := $root.Values.files.contents }}
      - {key: {{ include "tidegate.fileKey" (list $index $file.path) }}, path: {{ $file.path | quote }}}
      {{- end }}
{{- end -}}

{{- define "tidegate.filesMount" -}}
- {name: files, mountPath: {{ .Values.files.mountPath }}, readOnly: true}
{{- end -}}
