{{- /* The parts that several objects share. */ -}}

{{- define "tabletune.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: tabletune
{{ include "tabletune.selectorLabels" . }}
{{- end }}

{{- define "tabletune.selectorLabels" -}}
app.kubernetes.io/name: tabletune-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Objects without a namespace carry it in their name: two releases in two namespaces must not meet. */ -}}
{{- define "tabletune.clusterName" -}}
{{ printf "%s:tabletune" .Release.Namespace }}
{{- end }}

{{- /* A webhook's configuration is no RBAC object: its name may hold no colon. */ -}}
{{- define "tabletune.admissionName" -}}
{{ printf "tabletune.%s" .Release.Namespace }}
{{- end }}

{{- define "tabletune.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- /* JSON list of the namespaces that the operator serves; empty: all. */ -}}
{{- define "tabletune.namespaces" -}}
{{- if eq .Values.scope "Namespaced" -}}
{{ .Values.watchNamespaces | default (list .Release.Namespace) | sortAlpha | toJson }}
{{- else -}}
[]
{{- end -}}
{{- end }}

{{- /* Pod Security "restricted". The user is the image's own, by number. */ -}}
{{- define "tabletune.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "tabletune.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "tabletune.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- /* Small pods that ask the API server a few questions. */ -}}
{{- define "tabletune.hookResources" -}}
requests:
  cpu: 50m
  memory: 64Mi
limits:
  memory: 256Mi
{{- end }}

{{- /*
Checks that need two values at once, which values.schema.json could refuse only with an unreadable message.
*/ -}}
{{- define "tabletune.validate" -}}
{{- if and (eq .Values.scope "Cluster") .Values.watchNamespaces }}
{{- fail "watchNamespaces has entries but scope is Cluster, which serves every namespace: set scope=Namespaced or empty watchNamespaces." }}
{{- end }}
{{- if and (eq .Values.crds.onUninstall "Delete") (eq .Values.uninstall.drafttables "Keep") }}
{{- fail "crds.onUninstall=Delete deletes every DraftTable, but uninstall.drafttables=Keep keeps them: set one of the two to the other's wish." }}
{{- end }}
{{- end }}
