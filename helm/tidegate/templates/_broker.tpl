{{/* Permissions at the broker by user; a user is a component (_services.tpl). */}}
{{- define "tidegate.brokerUsers" -}}
{{- range $_, $row := include "tidegate.services" . | fromYaml }}
{{ $row.name }}: {{ toJson $row.broker }}
{{- end }}
{{- end -}}

{{- define "tidegate.streams" -}}
[TASKS, ROLLOUTS, TRAJECTORIES, PROGRESS, POLICY, CONTROL, EVENTS, QUARANTINE]
{{- end -}}

{{/* All users with a password: the components, people and `helm test` (operator), the server's own account (system), and
the routes between servers. */}}
{{- define "tidegate.brokerKeys" -}}
{{- join " " (concat (keys (include "tidegate.brokerUsers" . | fromYaml) | sortAlpha) (list "operator" "routes" "system")) -}}
{{- end -}}

{{/* The environment variable with a user's password: the configuration file contains no secrets. */}}
{{- define "tidegate.brokerVariable" -}}
TG_{{ . | upper | replace "-" "_" }}
{{- end -}}

{{- define "tidegate.brokerConfig" -}}
{{- $root := . -}}
{{- $run := include "tidegate.runId" . -}}
{{- $nats := .Values.nats -}}
{{- $name := include "tidegate.name" (list . "nats") -}}
server_name: $POD_NAME
listen: "0.0.0.0:4222"
http: "0.0.0.0:8222"
pid_file: "/tmp/nats.pid"
max_payload: 2097152
lame_duck_grace_period: "5s"
lame_duck_duration: "30s"

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
      { user: operator, password: $TG_OPERATOR }
      {{- range $user, $may := include "tidegate.brokerUsers" . | fromYaml }}
      {
        user: {{ $user }}, password: ${{ include "tidegate.brokerVariable" $user }}
        permissions {
          publish: { allow: [
            {{- range concat ($may.publish | default list) (list "stats.*" "evt.*" "bad.*") }}
            "tg.{{ $run }}.{{ . }}"
            {{- end }}
            "$JS.API.INFO"
            {{- range $stream := include "tidegate.streams" $root | fromYamlArray }}
            "$JS.API.STREAM.INFO.{{ $stream }}-{{ $run }}"
            "$JS.API.STREAM.CREATE.{{ $stream }}-{{ $run }}"
            "$JS.API.STREAM.UPDATE.{{ $stream }}-{{ $run }}"
            {{- end }}
            {{- range $may.read }}
            "$JS.API.DIRECT.GET.{{ . }}-{{ $run }}.>"
            "$JS.API.STREAM.MSG.GET.{{ . }}-{{ $run }}"
            {{- end }}
            {{- with $may.purge }}
            "$JS.API.STREAM.PURGE.{{ . }}-{{ $run }}"
            {{- end }}
            {{- with coalesce $may.consume $may.tune }}
            "$JS.API.CONSUMER.INFO.{{ . }}-{{ $run }}.*"
            "$JS.API.CONSUMER.CREATE.{{ . }}-{{ $run }}.>"
            "$JS.API.CONSUMER.DURABLE.CREATE.{{ . }}-{{ $run }}.*"
            {{- end }}
            {{- with $may.consume }}
            "$JS.API.CONSUMER.MSG.NEXT.{{ . }}-{{ $run }}.*"
            "$JS.ACK.{{ . }}-{{ $run }}.>"
            {{- end }}
          ] }
          subscribe: { allow: [
            "_INBOX_{{ $user }}.>"
            {{- range concat ($may.follow | default list) (list "stats.*" "evt.*") }}
            "tg.{{ $run }}.{{ . }}"
            {{- end }}
          ] }
        }
      }
      {{- end }}
    ]
  }
}
{{- end -}}
