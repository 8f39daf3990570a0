{{/* Permissions at the broker by user: those of this release's services (a user is a component), of `operator`, who reads,
and of `bootstrap`, who creates and updates the streams. The table is services/tidegate/wire/permissions.py, which also
configures the broker of `tidegate up`; `make chart` writes it to files/. */}}
{{- define "tidegate.brokerUsers" -}}
{{- $table := .Files.Get "files/broker-permissions.json" | replace "{run}" (include "tidegate.runId" .) | fromJson -}}
{{- $users := list "operator" "bootstrap" -}}
{{- range $_, $row := include "tidegate.services" . | fromYaml }}{{ $users = append $users $row.name }}{{ end -}}
{{- range $user := sortAlpha $users }}
{{ $user }}: {{ required (printf "files/broker-permissions.json has no user %s: run make chart" $user) (get $table $user) | toJson }}
{{- end }}
{{- end -}}

{{/* Passwords that the broker reads as environment variables, at its start only: of the server's own account (system), of the
routes between servers, and of all users where the Secret is yours. */}}
{{- define "tidegate.brokerKeys" -}}
{{- $users := ternary list (keys (include "tidegate.brokerUsers" . | fromYaml)) (ne (include "tidegate.makesPasswords" .) "") -}}
{{- join " " (concat ($users | sortAlpha) (list "routes" "system")) -}}
{{- end -}}

{{/* A service's password at the broker, as a file that is read again when it changes: (list root service) */}}
{{- define "tidegate.brokerVolume" -}}
{{- $root := index . 0 -}}
{{- $user := $root.Values.nats.auth.user | default (index . 1 | replace "_" "-") -}}
{{- $key := ternary $root.Values.nats.auth.passwordKey $user (ne $root.Values.nats.auth.user "") -}}
{{- if include "tidegate.makesPasswords" $root }}{{ $key = printf "%s.passwords" $user }}{{ end -}}
- name: broker
  secret: {secretName: {{ include "tidegate.brokerSecret" $root }}, defaultMode: 0440, items: [{key: {{ $key }}, path: password}]}
{{- end -}}

{{- define "tidegate.brokerMount" -}}
- {name: broker, mountPath: /etc/tidegate-broker-user, readOnly: true}
{{- end -}}

{{/* The environment variable with a user's password: the configuration file contains no secrets. */}}
{{- define "tidegate.brokerVariable" -}}
TG_{{ . | upper | replace "-" "_" }}
{{- end -}}

{{- define "tidegate.brokerConfig" -}}
{{- $nats := .Values.nats -}}
{{- $name := include "tidegate.name" (list . "nats") -}}
{{- if include "tidegate.makesPasswords" . }}
# The passwords of the users, read again at SIGHUP as the certificates are.
include "../nats-users/passwords.conf"
{{- end }}
server_name: $POD_NAME
listen: "0.0.0.0:4222"
http: "0.0.0.0:8222"
pid_file: "/tmp/nats.pid"
max_payload: 2097152
lame_duck_grace_period: "5s"
lame_duck_duration: "30s"
{{- if include "tidegate.brokerTls" . }}

# Read again at SIGHUP, which the container `reloader` sends when the mounted files change.
tls {
  cert_file: "/etc/nats-tls/tls.crt"
  key_file: "/etc/nats-tls/tls.key"
  ca_file: "/etc/nats-tls/ca.crt"
  verify: true
  timeout: 10
}
{{- end }}

jetstream {
  store_dir: "/data"
  max_file_store: {{ $nats.fileStoreMax }}
  max_memory_store: 64Mi
  {{- if eq $nats.durability "power" }}
  sync_interval: always
  {{- else }}
  sync_interval: "2m"
  {{- end }}
}
{{- if gt (int $nats.replicas) 1 }}

cluster {
  name: {{ $name | quote }}
  listen: "0.0.0.0:6222"
  authorization { user: routes, password: $TG_ROUTES }
  {{- if include "tidegate.brokerTls" . }}
  tls {
    cert_file: "/etc/nats-tls/tls.crt"
    key_file: "/etc/nats-tls/tls.key"
    ca_file: "/etc/nats-tls/ca.crt"
    verify: true
    timeout: 10
  }
  {{- end }}
  routes: [
    {{- range $index := until (int $nats.replicas) }}
    $TG_ROUTE_{{ $index }}
    {{- end }}
  ]
}
{{- end }}

system_account: SYSTEM
accounts {
  SYSTEM { users: [{ user: system, password: $TG_SYSTEM }] }
  TIDEGATE {
    jetstream: enabled
    users: [
      {{- range $user, $may := include "tidegate.brokerUsers" . | fromYaml }}
      {
        user: {{ $user }}, password: ${{ include "tidegate.brokerVariable" $user }}
        permissions {
          publish: { allow: [
            {{- range $may.publish }}
            {{ quote . }}
            {{- end }}
          ] }
          subscribe: { allow: [
            {{- range $may.subscribe }}
            {{ quote . }}
            {{- end }}
          ] }
        }
      }
      {{- end }}
    ]
  }
}
{{- end -}}
