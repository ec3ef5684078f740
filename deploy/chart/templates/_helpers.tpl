{{/* Values without those that are null, as JSON. */}}
{{- define "simgpu.pruned" -}}
{{- $found := dict -}}
{{- range $key, $item := . -}}
{{- if kindIs "map" $item -}}
{{- $_ := set $found $key (include "simgpu.pruned" $item | fromJson) -}}
{{- else if not (kindIs "invalid" $item) -}}
{{- $_ := set $found $key $item -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* All settings as JSON: defaults, then the user's values. Values that an older release left are complete then, too.
     The topology is not among them, because large numbers would change their form. */}}
{{- define "simgpu.settings" -}}
{{- $defaults := .Files.Get "files/defaults.yaml" | fromYaml -}}
{{- $user := include "simgpu.pruned" (omit .Values "topology" "cluster" "customProfiles" "catalog") | fromJson -}}
{{- $settings := mergeOverwrite $defaults $user -}}
{{- $fgo := include "simgpu.fakeGpuOperator" $user | fromJson -}}
{{- mergeOverwrite $settings $fgo | toJson -}}
{{- end -}}

{{/* Settings that values of fake-gpu-operator stand for, as JSON. */}}
{{- define "simgpu.fakeGpuOperator" -}}
{{- $found := dict "openshift" (dig "environment" "openshift" false .) -}}
{{- $device := dig "devicePlugin" "enabled" true . -}}
{{- $dra := dig "draPlugin" "enabled" false . -}}
{{- $exporter := dig "statusExporter" "enabled" true . -}}
{{- $kwokDevice := dig "kwokGpuDevicePlugin" "enabled" true . -}}
{{- $kwokDra := dig "kwokDraPlugin" "enabled" false . -}}
{{- $given := dig "allocation" "" . -}}
{{- $real := $given | default (and $dra (ternary "both" "dra" $device) | default "extended") -}}
{{- $fake := $given | default (and $kwokDra (ternary "both" "dra" $kwokDevice) | default "extended") -}}
{{- $_ := set $found "allocations" (dict "real" $real "fake" $fake) -}}
{{- $agent := and (dig "agent" "enabled" true .) (or $device $dra $exporter) -}}
{{- $_ := set $found "agent" (dict "enabled" $agent) -}}
{{- if dig "statusExporter" "podResources" "enabled" false . -}}
{{- $_ := set $found "agent" (dict "enabled" $agent "zoneView" (dict "enabled" true)) -}}
{{- end -}}
{{- $_ := set $found "controller" (dict "enabled" (and (dig "controller" "enabled" true .) (dig "statusUpdater" "enabled" true .))) -}}
{{- $runai := dict -}}
{{- if dig "statusUpdater" "runaiIntegration" "enabled" false . -}}
{{- $_ := set $runai "enabled" true -}}
{{- end -}}
{{- with dig "statusUpdater" "runaiIntegration" "pollingInterval" "" . -}}
{{- $_ := set $runai "pollingInterval" . -}}
{{- end -}}
{{- with dig "environment" "resourceReservationNamespace" "" . -}}
{{- $_ := set $runai "reservationNamespace" . -}}
{{- end -}}
{{- $_ := set $found "runai" $runai -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The topology as the user gave it: `cluster` where it has anything, else `topology`. Entries that are null are left
     out; without pools and nodes, the default pool is there. */}}
{{- define "simgpu.topology" -}}
{{- $given := .Values.cluster | default .Values.topology | default dict -}}
{{- $found := dict -}}
{{- range $key, $item := $given -}}
{{- if and (has $key (list "nodePools" "nodes")) (kindIs "map" $item) -}}
{{- $entries := dict -}}
{{- range $name, $entry := $item -}}
{{- if not (kindIs "invalid" $entry) }}{{ $_ := set $entries $name $entry }}{{ end -}}
{{- end -}}
{{- if or $entries (eq $key "nodePools") }}{{ $_ := set $found $key $entries }}{{ end -}}
{{- else if not (kindIs "invalid" $item) -}}
{{- $_ := set $found $key $item -}}
{{- end -}}
{{- end -}}
{{- if not (or $found.nodePools $found.nodes) -}}
{{- $_ := set $found "nodePools" (dict "default" (dict "gpuProduct" "Tesla-K80" "gpuCount" 2 "gpuMemory" 11441)) -}}
{{- end -}}
{{- if not $found.nodePoolLabelKey }}{{ $_ := set $found "nodePoolLabelKey" (include "simgpu.poolLabel" .) }}{{ end -}}
{{- if not (or $found.migStrategy (hasKey $found "mig-strategy")) }}{{ $_ := set $found "migStrategy" "mixed" }}{{ end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The label by which nodes are in a pool. */}}
{{- define "simgpu.poolLabel" -}}
{{- $given := .Values.cluster | default .Values.topology | default dict -}}
{{- $given.nodePoolLabelKey | default "run.ai/simulated-gpu-node-pool" -}}
{{- end -}}

{{/* The name of an object: (list CONTEXT NAME). */}}
{{- define "simgpu.name" -}}
{{- $context := index . 0 -}}
{{- $name := index . 1 -}}
{{- with $context.Values.fullnameOverride -}}{{ printf "%s-%s" . $name | trunc 63 | trimSuffix "-" }}{{- else -}}{{ $name }}{{- end -}}
{{- end -}}

{{- define "simgpu.image" -}}
{{- $settings := index . 1 -}}
{{- printf "%s:%s" $settings.image.repository ($settings.image.tag | default (index . 0).Chart.AppVersion) -}}
{{- end -}}

{{/* Labels of an object: (list CONTEXT SETTINGS COMPONENT). */}}
{{- define "simgpu.labels" -}}
{{- $context := index . 0 -}}
app.kubernetes.io/name: simgpu
app.kubernetes.io/instance: {{ $context.Release.Name }}
app.kubernetes.io/component: {{ index . 2 }}
app.kubernetes.io/version: {{ $context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $context.Chart.Name $context.Chart.Version | replace "+" "_" }}
{{- with (index . 1).commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Whether anything uses dynamic resource allocation: pools, or their default. */}}
{{- define "simgpu.dra" -}}
{{- $settings := include "simgpu.settings" . | fromJson -}}
{{- $ways := list $settings.allocations.real $settings.allocations.fake -}}
{{- $topology := include "simgpu.topology" . | fromYaml -}}
{{- $ways = append $ways ($topology.allocation | default "extended") -}}
{{- range $entries := list $topology.nodePools $topology.nodes -}}
{{- range $entry := $entries -}}
{{- if kindIs "map" $entry }}{{ $ways = append $ways ($entry.allocation | default "extended") }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if or (has "dra" $ways) (has "both" $ways) -}}true{{- end -}}
{{- end -}}

{{/* The version of resource.k8s.io that the cluster serves; empty for none. */}}
{{- define "simgpu.draVersion" -}}
{{- $served := .Capabilities.APIVersions -}}
{{- range $version := list "v1" "v1beta2" "v1beta1" -}}
{{- if $served.Has (printf "resource.k8s.io/%s" $version) }}{{ $version }} {{ end -}}
{{- end -}}
{{- end -}}

{{/* Whether the cluster is OpenShift, or the values say so: (list CONTEXT SETTINGS). */}}
{{- define "simgpu.openshift" -}}
{{- if or (index . 1).openshift ((index . 0).Capabilities.APIVersions.Has "security.openshift.io/v1") -}}true{{- end -}}
{{- end -}}

{{/* Security context of pods that need nothing of the node: (list CONTEXT SETTINGS). OpenShift chooses the user, from
     those of the namespace. */}}
{{- define "simgpu.unprivileged" -}}
runAsNonRoot: true
{{- if not (include "simgpu.openshift" .) }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Annotations of a hook before the release is deleted: WEIGHT. */}}
{{- define "simgpu.hook" }}
    helm.sh/hook: pre-delete
    helm.sh/hook-weight: {{ . | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Values that fake-gpu-operator has and this chart does not use, as a JSON list of lines; only those that differ from
     what they mean when they are left out. */}}
{{- define "simgpu.ignored" -}}
{{- $found := list -}}
{{- $user := include "simgpu.pruned" (omit .Values "topology" "cluster" "customProfiles" "catalog") | fromJson -}}
{{- range $key, $why := dict
  "gpuOperator" "no subcharts: SimGPU's own NVML is always there"
  "gpu-operator" "no subcharts"
  "nvidiaDraDriver" "no subcharts: SimGPU's own DRA plugin"
  "nvidia-dra-driver-gpu" "no subcharts"
  "nvmlMock" "backend mock means the same as fake: NVML is always there"
  "migFaker" "part of the controller: run.ai/mig.config and nvidia.com/mig.config of fake nodes"
  "ubuntu" "there is no init container"
  "topologyServer" "part of the controller"
  "computeDomainController" "ComputeDomains are not simulated yet"
  "computeDomainDraPlugin" "ComputeDomains are not simulated yet"
  "kwokComputeDomainDraPlugin" "ComputeDomains are not simulated yet"
  "nameOverride" "see fullnameOverride"
  "namespaceOverride" "objects are in the release's namespace"
  "selectorLabelsOverride" "labels of pods are fixed; see commonLabels" -}}
{{- $off := eq (get $user $key | toJson) `{"enabled":false}` -}}
{{- if and (hasKey $user $key) (not $off) -}}{{- $found = append $found (printf "%s: %s" $key $why) -}}{{- end -}}
{{- end -}}
{{- range $section, $used := dict
  "environment" (list "openshift" "resourceReservationNamespace")
  "devicePlugin" (list "enabled")
  "draPlugin" (list "enabled")
  "kwokGpuDevicePlugin" (list "enabled")
  "kwokDraPlugin" (list "enabled")
  "statusExporter" (list "enabled" "podResources")
  "statusUpdater" (list "enabled" "runaiIntegration") -}}
{{- range $key, $_ := dig $section dict $user -}}
{{- if not (has $key $used) -}}{{- $found = append $found (printf "%s.%s: see controller and agent" $section $key) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- sortAlpha $found | toJson -}}
{{- end -}}

{{/* Whether NUMA zones of nodes may be published: wherever their type is served. Pools without zones count too, because
     what was published while they had some has to be removed. */}}
{{- define "simgpu.zones" -}}
{{- if .Capabilities.APIVersions.Has "topology.node.k8s.io/v1alpha2" -}}true{{- end -}}
{{- end -}}

{{/* Seconds of a time such as 90s or 2m. */}}
{{- define "simgpu.seconds" -}}
{{- $number := regexFind "^[0-9]+" . | int -}}
{{- mul $number (get (dict "s" 1 "m" 60 "h" 3600) (regexFind "[a-z]+$" .)) -}}
{{- end -}}

{{/* Whether pods may be changed in Run:ai's namespace of reservations: where it exists, because a Role in a missing one
     fails the release; by the values where there is no cluster to ask, as in helm template. Of SETTINGS. */}}
{{- define "simgpu.reserving" -}}
{{- $offline := not (lookup "v1" "Namespace" "" "kube-system") -}}
{{- if or (lookup "v1" "Namespace" "" .runai.reservationNamespace) (and .runai.enabled $offline) -}}true{{- end -}}
{{- end -}}
