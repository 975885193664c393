{{- define "rt.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "rt.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "rt.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "rt.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rt.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rt.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Never changed: the Deployment's selector is immutable. */}}
{{- define "rt.selectorLabels" -}}
app.kubernetes.io/name: {{ include "rt.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "rt.labels" -}}
{{ include "rt.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: resumable-training
{{- end -}}

{{/* Of what is for Prometheus and Grafana. Given: the root, and the part's own labels. */}}
{{- define "rt.monitoringLabels" -}}
{{- $root := index . 0 -}}
{{- $usual := include "rt.labels" $root | fromYaml -}}
{{- merge (dict) (index . 1) $root.Values.metrics.labels $usual | toYaml -}}
{{- end -}}

{{/* What the operator puts on all pods that it makes. */}}
{{- define "rt.workerLabels" -}}
app.kubernetes.io/managed-by: resumable-training
{{- end -}}

{{- define "rt.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* "true", or empty. */}}
{{- define "rt.installCrds" -}}
{{- if or (eq (toString .Values.crds.install) "true") (and (eq (toString .Values.crds.install) "auto") (not .Values.watchNamespaces)) -}}
true
{{- end -}}
{{- end -}}

{{/* Rights on the namespaced objects of jobs; docs/rbac.md gives the reason for each verb. */}}
{{- define "rt.jobRules" -}}
- apiGroups: [resumable.dev]
  resources: [resumabletrainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [resumable.dev]
  resources: [resumabletrainingjobs/status]
  verbs: [update]
- apiGroups: [resumable.dev]
  resources: [resumabletrainingjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
{{- end -}}

{{/* The namespaces in which worker pods get a NetworkPolicy, as a JSON list. */}}
{{- define "rt.policyNamespaces" -}}
{{- $namespaces := default .Values.watchNamespaces .Values.networkPolicy.namespaces -}}
{{- if not $namespaces -}}
{{- fail "networkPolicy.enabled: say where worker pods run with networkPolicy.namespaces (or watchNamespaces): a NetworkPolicy holds in one namespace only" -}}
{{- end -}}
{{- $namespaces | uniq | toJson -}}
{{- end -}}

{{- define "rt.prometheusPeer" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .Values.networkPolicy.prometheus.namespace }}
  {{- with .Values.networkPolicy.prometheus.podLabels }}
  podSelector:
    matchLabels:
      {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end -}}
