# Shared by the scripts in this folder; sourced, never run. Sets the working directory to the
# repository root.
set -euo pipefail
export WARMPATH_CALLER_DIR="$PWD"  # file names in arguments are relative to it
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

note() { printf '\n== %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# Number of parallel jobs: WARMPATH_JOBS, else one per core, but no more than the memory carries
# (a file that includes gRPC takes half a gigabyte to compile, more with sanitizers).
jobs_here() {
  if [[ -n "${WARMPATH_JOBS:-}" ]]; then echo "$WARMPATH_JOBS"; return; fi
  local cores memory_gib
  cores=$(nproc)
  memory_gib=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  (( memory_gib < 1 )) && memory_gib=1
  echo $(( cores < memory_gib ? cores : memory_gib ))
}

# retry COMMAND...: up to four attempts, 5, 10 and 20 seconds apart. For downloads only.
retry() {
  local attempt pause=5
  for attempt in 1 2 3; do
    if "$@"; then return 0; fi
    echo "attempt $attempt failed, next one in ${pause} s: $*" >&2
    sleep "$pause"
    pause=$(( pause * 2 ))
  done
  "$@"
}

# usage_of FILE: prints the comment block at the head of a script, which is its manual.
usage_of() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$1"; }

# run_fleet_program PROGRAM BIN ARGUMENTS...: becomes a Python program that starts ours from the folder
# BIN. Before, unless the arguments have --no-setup, installs and builds what it starts.
run_fleet_program() {
  local program=$1 bin=$2 setup=1 arg
  local arguments=()
  shift 2
  for arg in "$@"; do
    case "$arg" in
      --help|-h) usage_of "$0"; exit 0 ;;
      --no-setup) setup=0 ;;
      *) arguments+=("$arg") ;;
    esac
  done
  if (( setup )); then
    scripts/setup >&2
    note "build: release"
    scripts/build release warmpath-router warmpath-agent warmpath-engine warmpathctl warmpath-replay >&2
  fi
  WARMPATH_BIN="$bin" exec /usr/bin/python3 "$program" ${arguments[@]+"${arguments[@]}"}
}
