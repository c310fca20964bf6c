{{/* Security of a pod and of its containers: the profile `restricted` of the Pod Security Standards. */}}
{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{/* Over nodes always, over zones where possible. Context: {name, hash: whether each template is spread by itself}. */}}
{{- define "penstock.spread" -}}
{{- range list (list "kubernetes.io/hostname" "DoNotSchedule") (list "topology.kubernetes.io/zone" "ScheduleAnyway") }}
- topologyKey: {{ index . 0 }}
  maxSkew: 1
  whenUnsatisfiable: {{ index . 1 }}
  labelSelector: {matchLabels: {app.kubernetes.io/name: {{ $.name }}}}
  {{- if $.hash }}
  matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end }}

{{/*
The volume of a pod's certificate. With cert-manager each pod has a certificate for its own name, which its CSI driver keeps in
memory and renews.
Context: {root, secret: name of the secret, uri: SPIFFE ID or "", dns: list of names, pods: list of names}.
*/}}
{{- define "penstock.identityVolume" -}}
- name: identity
  {{- with .root.Values.certificates }}
  {{- if eq .source "cert-manager" }}
  csi:
    driver: csi.cert-manager.io
    readOnly: true
    volumeAttributes:
      csi.cert-manager.io/issuer-name: {{ .certManager.issuerName | quote }}
      csi.cert-manager.io/issuer-kind: {{ .certManager.issuerKind | quote }}
      {{- with $.uri }}
      csi.cert-manager.io/uri-sans: {{ . | quote }}
      {{- end }}
      csi.cert-manager.io/dns-names: {{ join "," $.dns | quote }}
      csi.cert-manager.io/key-algorithm: ECDSA
      csi.cert-manager.io/key-size: "256"
      csi.cert-manager.io/key-encoding: PKCS8
      csi.cert-manager.io/key-usages: digital signature,client auth,server auth
      csi.cert-manager.io/duration: {{ .certManager.duration | quote }}
      csi.cert-manager.io/fs-group: "65532"
  {{- else }}
  secret:
    secretName: {{ $.secret }}
    defaultMode: 0440
    items:
      {{- range $pod := $.pods }}
      - {key: {{ $pod }}.tls.crt, path: {{ $pod }}/tls.crt}
      - {key: {{ $pod }}.tls.key, path: {{ $pod }}/tls.key}
      - {key: ca.crt, path: {{ $pod }}/ca.crt}
      {{- end }}
  {{- end }}
  {{- end }}
{{- end }}

{{/*
The mount of that volume. Of a secret with the certificates of all pods, a container has its own alone.
Context: {root, path, pod: variable of the container with the name of the pod}.
*/}}
{{- define "penstock.identityMount" -}}
- name: identity
  mountPath: {{ .path }}
  readOnly: true
  {{- if eq .root.Values.certificates.source "secrets" }}
  subPathExpr: $({{ .pod }})
  {{- end }}
{{- end }}

{{/* Names of the pods of a StatefulSet, as a JSON list. Context: {name, replicas}. */}}
{{- define "penstock.podNames" -}}
{{- $names := list -}}
{{- range $ordinal := until (int .replicas) }}{{ $names = append $names (printf "%s-%d" $.name $ordinal) }}{{ end -}}
{{- toJson $names -}}
{{- end }}
