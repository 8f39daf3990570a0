{{/* How the services are certified: "secret" (one Secret of yours for all), "cert-manager" (a certificate each), or nothing. */}}
{{- define "tidegate.tls" -}}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled -}}
{{- fail "tls.existingSecret and tls.certManager.enabled: choose one" -}}
{{- end -}}
{{- if .Values.tls.existingSecret }}secret{{ else if .Values.tls.certManager.enabled }}cert-manager{{ end -}}
{{- end -}}

{{/* Whether the chart's own broker asks for certificates. */}}
{{- define "tidegate.brokerTls" -}}
{{- if and (eq .Values.nats.mode "builtin") .Values.tls.certManager.enabled }}true{{ end -}}
{{- end -}}

{{/* Components with a certificate of their own. */}}
{{- define "tidegate.certified" -}}
{{- $components := list "test" "streams" -}}
{{- range $_, $row := include "tidegate.services" . | fromYaml }}{{ $components = append $components $row.name }}{{ end -}}
{{- if eq .Values.nats.mode "builtin" }}{{ $components = append $components "nats" }}{{ end -}}
{{- join " " ($components | sortAlpha) -}}
{{- end -}}

{{/* The Secret with the certificate of a component: (list root component) */}}
{{- define "tidegate.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- $root.Values.tls.existingSecret | default (include "tidegate.name" (list $root (printf "%s-tls" (index . 1)))) -}}
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
- {name: tls, secret: {secretName: {{ include "tidegate.tlsSecret" . }}, defaultMode: 0440}}
{{- end }}
{{- if and (eq $root.Values.nats.mode "external") $root.Values.nats.tls.existingSecret }}
- {name: broker-ca, secret: {secretName: {{ $root.Values.nats.tls.existingSecret }}, items: [{key: ca.crt, path: ca.crt}]}}
{{- end }}
{{- end -}}
