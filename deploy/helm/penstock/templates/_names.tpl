{{/* Labels of an object. Context: {root, name}. */}}
{{- define "penstock.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of pods: without the version, so that they change only with what the pods run. */}}
{{- define "penstock.podLabels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "penstock.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "penstock.etcdEndpoints" -}}
{{- $endpoints := .Values.etcdEndpoints -}}
{{- if .Values.trial.etcd.enabled -}}
{{- if $endpoints }}{{ fail "etcdEndpoints: remove them, or set trial.etcd.enabled to false: a fleet has one etcd" }}{{ end -}}
{{- $endpoints = list (printf "etcd.%s.svc:2379" .Release.Namespace) -}}
{{- end -}}
{{- if not $endpoints }}{{ fail "etcdEndpoints: is empty; list host:port of each etcd member, or set trial.etcd.enabled for a trial" }}{{ end -}}
{{- toYaml $endpoints -}}
{{- end }}

{{/* The kind of the agents: a StatefulSet where the names of its pods have to be known. */}}
{{- define "penstock.agentKind" -}}
{{- $named := or .Values.gateway.enabled (eq .Values.certificates.source "secrets") -}}
{{- if and $named (eq .Values.agent.kind "DaemonSet") -}}
{{- fail "agent.kind: a DaemonSet has no pods of known names, which gateway.enabled and certificates.source secrets need; set StatefulSet" -}}
{{- end -}}
{{- ternary "StatefulSet" .Values.agent.kind $named -}}
{{- end }}

{{- define "penstock.gatewayDomain" -}}
{{- .Values.gateway.domain | default (printf "%s.%s.internal" .Values.region .Values.fleet) -}}
{{- end }}

{{/* Fails where a value is missing that no default can be good for. */}}
{{- define "penstock.checked" -}}
{{- if not .Values.fleet }}{{ fail "fleet: is empty; name the fleet, as `penstock certs init NAME` did" }}{{ end -}}
{{- if and .Values.agent.enabled (not .Values.region) }}{{ fail "region: is empty; name the region of the agents, as in the policy" }}{{ end -}}
{{- if and .Values.agent.enabled (not .Values.controlPlane.enabled) (not .Values.controlPlane.urls) -}}
{{- fail "controlPlane.urls: is empty; list https URLs of control planes, since this release has none" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.address) -}}
{{- fail "gateway.address: is empty; set host:port at which other regions reach the gateway" -}}
{{- end -}}
{{- if and .Values.controlPlane.enabled (not (or .Values.controlPlane.policyConfigMap (hasKey .Values.controlPlane.settings "policy_repository"))) -}}
{{- fail "controlPlane.settings: no policy_repository; add the URL of the policy's git repository, or set controlPlane.policyConfigMap" -}}
{{- end -}}
{{- range $name := include "penstock.agentSettings" . | fromJsonArray -}}
{{- if hasKey $.Values.agent.settings $name }}{{ fail (printf "agent.settings.%s: the chart sets it; remove it" $name) }}{{ end -}}
{{- end -}}
{{- range $name := include "penstock.controlPlaneSettings" . | fromJsonArray -}}
{{- if hasKey $.Values.controlPlane.settings $name }}{{ fail (printf "controlPlane.settings.%s: the chart sets it; remove it" $name) }}{{ end -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.agent.enabled) }}{{ fail "gateway.enabled: the release has no agents; set agent.enabled" }}{{ end -}}
{{- end }}

{{/* Settings that the chart sets by environment variables or in the configuration file, as JSON lists. */}}
{{- define "penstock.agentSettings" -}}
["region", "name", "traffic_listen", "peer_listen", "admin_listen", "advertise_peer_url", "advertise_peer_server_name",
 "advertise_admin_url", "endpoints_file", "identity_dir", "region_key_file", "redis_password_file", "traffic_certificate_file",
 "traffic_key_file", "state_dir", "etcd_endpoints", "control_plane_urls"]
{{- end }}

{{- define "penstock.controlPlaneSettings" -}}
["name", "listen", "advertise_url", "identity_dir", "admin_token_file", "policy_dir", "etcd_endpoints"]
{{- end }}
