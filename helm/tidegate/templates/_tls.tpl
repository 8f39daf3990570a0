{{/* How the services are certified: "secret" (one Secret of yours for all), "cert-manager" or "self-signed" (a certificate
each), or nothing. */}}
{{- define "tidegate.tls" -}}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled -}}
{{- fail "tls.existingSecret and tls.certManager.enabled: choose one" -}}
{{- end -}}
{{- if .Values.tls.existingSecret }}secret{{ else if .Values.tls.certManager.enabled }}cert-manager
{{- else if .Values.tls.selfSigned.enabled }}self-signed{{ end -}}
{{- end -}}

{{/* Whether the chart's own broker asks for certificates. */}}
{{- define "tidegate.brokerTls" -}}
{{- if and (eq .Values.nats.mode "builtin") (has (include "tidegate.tls" .) (list "cert-manager" "self-signed")) }}true{{ end -}}
{{- end -}}

{{/* Components with a certificate of their own. */}}
{{- define "tidegate.certified" -}}
{{- $components := list "test" "streams" -}}
{{- range $_, $row := include "tidegate.services" . | fromYaml }}{{ $components = append $components $row.name }}{{ end -}}
{{- if eq .Values.nats.mode "builtin" }}{{ $components = append $components "nats" }}{{ end -}}
{{- if .Values.keda.enabled }}{{ $components = append $components "scaler" }}{{ end -}}
{{- if .Values.ui.enabled }}{{ $components = append $components "ui" }}{{ end -}}
{{- join " " ($components | sortAlpha) -}}
{{- end -}}

{{/* The names in the certificate of a component, comma-separated: (list root component) */}}
{{- define "tidegate.certifiedNames" -}}
{{- $namespace := (index . 0).Release.Namespace -}}
{{- $name := include "tidegate.name" . -}}
{{- $names := list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) -}}
{{- if include "tidegate.hasStandbys" (list (index . 0) ((index . 1) | replace "-" "_")) }}{{ $names = append $names (printf "%s-pods" $name) }}{{ end -}}
{{- if eq (index . 1) "nats" }}{{ $names = append $names (printf "*.%s-peers" $name) }}{{ end -}}
{{- join "," $names -}}
{{- end -}}

{{/* The Secret with the certificate of a component: (list root component) */}}
{{- define "tidegate.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- $root.Values.tls.existingSecret | default (include "tidegate.name" (list $root (printf "%s-tls" (index . 1)))) -}}
{{- end -}}

{{/* The volume with the certificate of a component: (list root component). A pod waits until its Secret has all of the keys. */}}
{{- define "tidegate.tlsVolume" -}}
- name: tls
  secret:
    secretName: {{ include "tidegate.tlsSecret" . }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}, {key: ca.crt, path: ca.crt}]
{{- end -}}

{{/* Mounts of a Tidegate container: its certificate, and the authority of an external broker. */}}
{{- define "tidegate.tlsMounts" -}}
{{- if include "tidegate.tls" . }}
- {name: tls, mountPath: /etc/tidegate-tls, readOnly: true}
{{- end }}
{{- if and (eq .Values.nats.mode "external") .Values.nats.tls.existingSecret }}
- {name: broker-ca, mountPath: /etc/tidegate-broker, readOnly: true}
{{- end }}
{{- end -}}

{{/* Their volumes: (list root component) */}}
{{- define "tidegate.tlsVolumes" -}}
{{- $root := index . 0 -}}
{{- if include "tidegate.tls" $root }}
{{ include "tidegate.tlsVolume" . }}
{{- end }}
{{- if and (eq $root.Values.nats.mode "external") $root.Values.nats.tls.existingSecret }}
- {name: broker-ca, secret: {secretName: {{ $root.Values.nats.tls.existingSecret }}, items: [{key: ca.crt, path: ca.crt}]}}
{{- end }}
{{- end -}}
