{{/* The settings file, and what else follows from the settings. */}}

{{/* The settings with what the pod fixes: one process has all of Spark, one core a slot, state in memory. */}}
{{- define "spillway.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- range $section := list "state" "spark" "warehouse" -}}
{{- if not (hasKey $settings $section) }}{{ $_ := set $settings $section dict }}{{ end -}}
{{- end -}}
{{- if hasKey $settings.spark "master" -}}
{{- fail "settings.spark.master: the pod has all of Spark in it, so say `cores` instead" -}}
{{- end -}}
{{- if hasKey $settings.state "root" -}}
{{- fail "settings.state.root: state lies in the pod's /dev/shm, so leave it out" -}}
{{- end -}}
{{- if hasKey $settings "queries" -}}
{{- fail "settings.queries: a release is one stream, so install one for each query and say settings.query" -}}
{{- end -}}
{{- range $section, $_ := pick $settings "kafka" "registry" "warehouse" -}}
{{- include "spillway.withoutSecrets" (dict "section" $section "options" (get $settings $section).options "above" "") -}}
{{- end -}}
{{- $_ := set $settings.spark "master" (printf "local[%d]" (int64 .Values.cores)) -}}
{{- $_ := set $settings.state "root" "/dev/shm/spillway" -}}
{{- if not (hasKey $settings.state "slots") }}{{ $_ := set $settings.state "slots" (int64 .Values.cores) }}{{ end -}}
{{- toJson $settings -}}
{{- end -}}

{{/* Nothing, or a failure for an option that is a secret. Names may be nested, as `--set` makes them of dots. */}}
{{- define "spillway.withoutSecrets" -}}
{{- $above := .above -}}
{{- $section := .section -}}
{{- range $inner, $value := .options -}}
{{- $name := printf "%s%s" $above $inner -}}
{{- if regexMatch "(?i)(password|secret|jaas|token|user\\.info|credential|[._]key$)" $name -}}
{{- fail (printf "settings.%s.options: %s is a secret: put it into a Secret under SPILLWAY_%s__OPTIONS, and name that in `secrets`" $section $name (upper $section)) -}}
{{- end -}}
{{- if kindIs "map" $value -}}
{{- include "spillway.withoutSecrets" (dict "section" $section "options" $value "above" (printf "%s." $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A table as TOML: what is no table first, then each table under its name. `toToml` would write 2 as 2.0. */}}
{{- define "spillway.toml" -}}
{{- $path := .path -}}
{{- range $name, $value := .table }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "spillway.key" $name }} = {{ toRawJson $value }}
{{- end }}
{{- end }}
{{- range $name, $value := .table }}
{{- if kindIs "map" $value }}
{{- $inner := append $path (include "spillway.key" $name) }}

[{{ join "." $inner }}]
{{- include "spillway.toml" (dict "path" $inner "table" $value) }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "spillway.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toRawJson . }}{{ end -}}
{{- end -}}

{{/* A size as spillway's settings have it, in bytes. */}}
{{- define "spillway.bytes" -}}
{{- $text := . | toString | lower | nospace -}}
{{- if kindIs "float64" . }}{{ $text = printf "%.0f" . }}{{ end -}}
{{- if not (regexMatch "^[0-9]+(\\.[0-9]+)?([kmgt]i?)?b?$" $text) -}}
{{- fail (printf "settings.state.budget_bytes: %s is no size: write a number of bytes, or one with its unit such as 512MiB" $text) -}}
{{- end -}}
{{- $number := regexFind "^[0-9.]+" $text | float64 -}}
{{- $unit := regexFind "[a-z]*$" $text | trimSuffix "b" -}}
{{- $units := dict "" 1 "k" 1e3 "m" 1e6 "g" 1e9 "t" 1e12 "ki" 1024 "mi" 1048576 "gi" 1073741824 "ti" 1099511627776 -}}
{{- mulf $number (get $units $unit) | floor | int64 -}}
{{- end -}}

{{/* MiB for the state: the slots' budgets, and a quarter more for merges. */}}
{{- define "spillway.stateMi" -}}
{{- $settings := include "spillway.settings" . | fromJson -}}
{{- $budget := required "settings.state.budget_bytes: say how much memory a slot has" $settings.state.budget_bytes -}}
{{- divf (mulf $settings.state.slots (include "spillway.bytes" $budget | float64) 1.25) 1048576 | ceil | int64 -}}
{{- end -}}

{{/* MiB of the JVM's heap: `spark.driver.memory`, which spillway sets where all of Spark is one process. */}}
{{- define "spillway.heapMi" -}}2048{{- end -}}

{{/* MiB of the container: all of its parts. */}}
{{- define "spillway.limitMi" -}}
{{- $parts := .Values.memoryMi -}}
{{- $workers := mul $parts.worker .Values.cores -}}
{{- add (include "spillway.stateMi" .) (include "spillway.heapMi" .) $parts.jvm $parts.driver $workers $parts.probe -}}
{{- end -}}

{{/* Where the warehouse is; empty when it is in an object store. */}}
{{- define "spillway.folder" -}}
{{- $root := required "settings.warehouse.root: say where the tables are" (include "spillway.settings" . | fromJson).warehouse.root -}}
{{- if not (regexMatch "^[a-z0-9]+://" $root) -}}
{{- if not (hasPrefix "/" $root) -}}
{{- fail (printf "settings.warehouse.root: %s is neither an absolute path nor the address of a bucket" $root) -}}
{{- end -}}
{{- trimSuffix "/" $root -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object, and those by which the pod is found. */}}
{{- define "spillway.labels" -}}
{{ include "spillway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "spillway.selector" -}}
app.kubernetes.io/name: spillway
app.kubernetes.io/component: stream
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
