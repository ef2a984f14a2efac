#!/bin/bash
# A Slurm cluster of four nodes on this machine, to try jobs that span nodes:
# munged, slurmctld and four slurmd, all on loopback, as root, without systemd.
# Everything it makes is inside the folder that is its argument.
#
#   loopback.sh start DIR    starts it (or says that it runs), waits for 4 idle nodes
#   loopback.sh stop DIR     ends its processes and removes what it made in DIR
#   loopback.sh status DIR   tells whether it runs; exit status 0 if it does
#
# Needs Debian's slurm-wlm and munge. /etc is neither read nor written.
set -euo pipefail

readonly NODES=4
readonly FIRST_PORT="${EVENKEEL_SLURM_PORT:-17000}" # slurmctld; the slurmd follow
readonly WAIT_S=30
# The socket of munged must have a short path: sockaddr_un holds 107 bytes.
readonly LONGEST_DIR=80

die() {
  echo "loopback.sh: $*" >&2
  exit 1
}

usage() {
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

find_programs() {
  local program
  # Debian has the daemons in /usr/sbin, which is not on everybody's PATH.
  PATH="$PATH:/usr/sbin:/sbin"
  for program in slurmctld slurmd srun sinfo scontrol munged munge; do
    command -v "$program" >/dev/null ||
      die "no $program on this machine: apt-get install --no-install-recommends slurm-wlm munge"
  done
  [ "$(id -u)" = 0 ] || die "needs root: slurmd starts tasks as other users; run it in a container or with sudo"
}

# plugin_dir is where the plug-ins lie; its path names the architecture.
plugin_dir() {
  local dir
  for dir in /usr/lib/*/slurm-wlm /usr/lib/*/slurm /usr/lib64/slurm; do
    if [ -e "$dir/auth_munge.so" ]; then
      echo "$dir"
      return
    fi
  done
  die "no auth_munge.so under /usr/lib: install slurm-wlm-basic-plugins"
}

write_config() {
  local host cores
  host="$(hostname -s)"
  cores="$(nproc)"
  cat >"$DIR/slurm.conf" <<END
ClusterName=evenkeel
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$FIRST_PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$DIR/munge.socket
CredType=cred/munge
PluginDir=$(plugin_dir)
# No cgroups, no affinity, no MPI plug-in: none of them works for four slurmd on
# one host, and none is needed to start tasks.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SelectType=select/cons_tres
# The nodes share this host's cores, so what they say they have is not checked.
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation=$DIR/state
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmctldLogFile=$DIR/slurmctld.log
SlurmdPidFile=$DIR/slurmd.%n.pid
SlurmdSpoolDir=$DIR/spool.%n
SlurmdLogFile=$DIR/slurmd.%n.log
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=2
NodeName=node[1-$NODES] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((FIRST_PORT + 1))-$((FIRST_PORT + NODES))] CPUs=$cores Boards=1 SocketsPerBoard=1 CoresPerSocket=$cores ThreadsPerCore=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
}

# idle_nodes is the number of idle nodes, 0 when the controller does not answer.
idle_nodes() {
  SLURM_CONF="$DIR/slurm.conf" timeout 5 sinfo -h -t idle -o %D 2>/dev/null | awk '{n += $1} END {print n + 0}'
}

# ours succeeds if a process lives and its command line holds our folder, so that
# a number used again by another process is not taken for it. A process that is just
# becoming another program has no command line for a moment, and one that has ended
# and is still listed has none either.
ours() {
  local line try
  [ -n "$1" ] || return 1
  for try in 1 2 3 4 5; do
    line="$( (tr '\0' ' ' <"/proc/$1/cmdline") 2>/dev/null)" || return 1
    [ -z "$line" ] || break
    [ "$try" = 5 ] || sleep 0.05
  done
  [[ "$line" == *"$DIR"* ]]
}

# started is the number of a daemon's process, as noted when it was started: the
# daemons' own pid files vanish when they begin to end, not when they have ended.
started() { cat "$DIR/$1.started" 2>/dev/null || true; }

daemons() {
  local n
  echo slurmctld
  for n in $(seq "$NODES"); do echo "slurmd.node$n"; done
  echo munged # last: the others sign with it while they end
}

running() {
  local name
  for name in $(daemons); do
    ours "$(started "$name")" || return 1
  done
}

# launch starts a daemon in a session of its own, its output in a log of DIR.
launch() {
  local name="$1"
  shift
  setsid "$@" >>"$DIR/$name.out" 2>&1 </dev/null 9>&- &
  echo $! >"$DIR/$name.started"
}

start_munge() {
  (umask 077 && head -c 1024 /dev/urandom >"$DIR/munge.key")
  launch munged munged --foreground --force --num-threads=2 --key-file="$DIR/munge.key" --socket="$DIR/munge.socket" \
    --log-file="$DIR/munge.log" --pid-file="$DIR/munge.pid" --seed-file="$DIR/munge.seed"
  await "munged" munge --no-input --socket="$DIR/munge.socket" --output=/dev/null
}

# await tries a command until it succeeds, and gives up after WAIT_S or as soon
# as a daemon has ended, which it does when its port is taken.
await() {
  local what="$1" end=$((SECONDS + WAIT_S))
  shift
  while ! "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || give_up "$what did not answer within $WAIT_S s"
    ended
    sleep 0.1
  done
}

# ended gives up if a daemon that was started is not there any more.
ended() {
  local note
  for note in "$DIR"/*.started; do
    ours "$(cat "$note")" || give_up "$(basename "$note" .started) ended; are ports $FIRST_PORT to $((FIRST_PORT + NODES)) free? (EVENKEEL_SLURM_PORT)"
  done
}

all_idle() { [ "$(idle_nodes)" = "$NODES" ]; }

# give_up shows the ends of the logs before everything is removed.
give_up() {
  tail -n 5 "$DIR"/*.log "$DIR"/*.out >&2 || true
  stop
  die "$1"
}

start() {
  find_programs
  mkdir -p "$DIR"
  exec 9>"$DIR/lock"
  flock -n 9 || die "another start or stop works on $DIR"
  if running && all_idle; then
    echo "runs already in $DIR"
  else
    trap 'stop; exit 130' INT TERM
    stop_daemons
    start_daemons
    trap - INT TERM
  fi
  explain
}

start_daemons() {
  local n
  # munged insists that no other user can write the folders above its socket.
  chmod 755 "$DIR"
  mkdir -p "$DIR/state"
  write_config
  start_munge
  export SLURM_CONF="$DIR/slurm.conf"
  launch slurmctld slurmctld -D -i -f "$SLURM_CONF"
  for n in $(seq "$NODES"); do
    mkdir -p "$DIR/spool.node$n"
    launch "slurmd.node$n" slurmd -D -N "node$n" -f "$SLURM_CONF"
  done
  await "the cluster" all_idle
}

explain() {
  cat <<END
4 nodes are idle. To use them:

  export SLURM_CONF=$DIR/slurm.conf
  srun -N$NODES printenv SLURMD_NODENAME

The names node1 to node$NODES are no host names. Programs that connect their tasks
need the address as well:

  export MASTER_ADDR=127.0.0.1

To end it: $0 stop $DIR
END
}

# stop_daemons ends our processes by their numbers, and only those.
stop_daemons() {
  local name pid
  for name in $(daemons); do
    pid="$(started "$name")"
    end "$pid"
    rm -f "${DIR:?}/$name.started"
  done
}

# end asks a process to end, and kills it after five seconds.
end() {
  local pid="$1" tries=50
  ours "$pid" || return 0
  kill "$pid" 2>/dev/null || true
  while ours "$pid"; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || kill -KILL "$pid" 2>/dev/null || true
    sleep 0.1
  done
}

stop() {
  [ -d "$DIR" ] || return 0
  # Jobs end before their node does, or their processes would outlive it.
  if running; then
    cancel_jobs
  fi
  stop_daemons
  rm -rf "${DIR:?}"/{slurm.conf,state,lock,munge.*,munged.out} "${DIR:?}"/slurm{ctld,d.node}*.{log,out,pid} "${DIR:?}"/spool.node*
  rmdir "$DIR" 2>/dev/null || echo "$DIR holds files that are not ours: left" >&2
}

cancel_jobs() {
  export SLURM_CONF="$DIR/slurm.conf"
  timeout 5 scancel --full --partition=all 2>/dev/null || true
  local tries=50
  while [ "$tries" -gt 0 ] && [ -n "$(timeout 5 squeue -h 2>/dev/null)" ]; do
    tries=$((tries - 1))
    sleep 0.1
  done
}

main() {
  [ $# = 2 ] || usage
  case "$2" in
  /*) DIR="${2%/}" ;;
  *) DIR="$PWD/${2%/}" ;;
  esac
  [ "${#DIR}" -le "$LONGEST_DIR" ] || die "$DIR: longer than $LONGEST_DIR bytes; sockets need a shorter path, such as /tmp/slurm"
  [[ "$DIR" =~ ^[A-Za-z0-9_./-]+$ ]] || die "$DIR: slurm.conf takes letters, digits and _./- only in a path"
  [[ "$FIRST_PORT" =~ ^[0-9]{4,5}$ ]] && ((FIRST_PORT >= 1024 && FIRST_PORT + NODES <= 65535)) ||
    die "EVENKEEL_SLURM_PORT=$FIRST_PORT: want 1024 to $((65535 - NODES))"
  case "$1" in
  start) start ;;
  stop) stop ;;
  status) running && all_idle && echo "4 idle nodes in $DIR" ;;
  *) usage ;;
  esac
}

main "$@"
