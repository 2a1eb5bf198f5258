//! Nothing but our own conventions → the units of the agent and of etcd on a machine that systemd runs.

/// Where everything of a machine lives that systemd runs.
pub const ROOT: &str = "/var/lib/raftsman";
/// The agent's program there.
pub const AGENT_PROGRAM: &str = "/usr/local/lib/raftsman/raftsman-agent";
/// The user that etcd runs as, and its group.
pub const ETCD_USER: &str = "raftsman-etcd";

/// Where Debian's node exporter reads further metrics; the agent writes its own there.
pub const METRICS: &str = "/var/lib/prometheus/node-exporter";

/// What neither of them needs.
const CONFINED: &str = "\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
";

/// The agent's unit.
///
/// It is root's, because it gives files to etcd's user, runs etcd's tool as that user and has systemd start etcd; of
/// root's powers it keeps those for files and processes of another user. Directories that hand their group down have their set-group-id bit, so that
/// `RestrictSUIDSGID` cannot be set.
pub fn agent_unit() -> String {
    format!(
        "\
# Written by raftsman-agent; changes are lost when it is installed again.
[Unit]
Description=Raftsman's agent
Wants=network-online.target
After=network-online.target dbus.service
# It never gives up: a machine whose agent is silent is lost to its fleet.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={AGENT_PROGRAM} --root {ROOT} --systemd
Restart=always
RestartSec=1
UMask=0077
ReadWritePaths={ROOT} -/etc/raftsman -{METRICS}
CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID CAP_SYS_PTRACE
{CONFINED}
[Install]
WantedBy=multi-user.target
"
    )
}

/// etcd's unit. The agent starts it, at boot too, because it checks the data first: a member that lost its data must
/// not return under the same name.
pub fn etcd_unit() -> String {
    format!(
        "\
# Written by raftsman-agent, which starts and stops this unit: do not enable it.
[Unit]
Description=etcd, operated by raftsman
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={ETCD_USER}
Group={ETCD_USER}
ExecStart={ROOT}/etcd/current/etcd --config-file={ROOT}/etcd/etcd.yaml
WorkingDirectory={ROOT}/etcd
Restart=no
TimeoutStopSec=90
UMask=0077
ReadWritePaths={ROOT}/etcd/data
CapabilityBoundingSet=
RestrictSUIDSGID=yes
LimitNOFILE=65536
OOMScoreAdjust=-900
IOSchedulingClass=best-effort
IOSchedulingPriority=0
{CONFINED}"
    )
}

/// The user that HAProxy runs as, and its group.
pub const HAPROXY_USER: &str = "raftsman-haproxy";

/// HAProxy's unit. The agent starts it, and stops the one of Debian's package. The directory of its socket is all that it
/// may write to.
pub fn haproxy_unit() -> String {
    let program = super::haproxy::PROGRAM;
    format!(
        "\
# Written by raftsman-agent, which starts, reloads and stops this unit: do not enable it.
[Unit]
Description=HAProxy, a balancer operated by raftsman
After=network-online.target
Conflicts=haproxy.service
StartLimitIntervalSec=0

[Service]
Type=notify
User={HAPROXY_USER}
Group={HAPROXY_USER}
ExecStart={program} -Ws -f {ROOT}/haproxy/haproxy.cfg
# A file that HAProxy refuses leaves the running process as it is.
ExecReload={program} -Ws -c -q -f {ROOT}/haproxy/haproxy.cfg
ExecReload=/bin/kill -USR2 $MAINPID
KillMode=mixed
Restart=no
SuccessExitStatus=143
TimeoutStopSec=30
UMask=0077
ReadWritePaths={ROOT}/haproxy/run
CapabilityBoundingSet=
RestrictSUIDSGID=yes
LimitNOFILE=262144
OOMScoreAdjust=-500
{CONFINED}"
    )
}

/// keepalived's unit. It is stopped when HAProxy ends, for whatever reason, so that another instance takes the virtual
/// address over. Of root's powers it keeps those for addresses and raw packets.
pub fn keepalived_unit() -> String {
    let program = super::keepalived::PROGRAM;
    let run = "/run/raftsman-keepalived";
    format!(
        "\
# Written by raftsman-agent, which starts and stops this unit: do not enable it.
[Unit]
Description=keepalived for the virtual address of a balancer, operated by raftsman
BindsTo=raftsman-haproxy.service
After=network-online.target raftsman-haproxy.service
Conflicts=keepalived.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={program} --dont-fork --log-console --no-syslog --vrrp --use-file={ROOT}/keepalived/keepalived.conf --pid={run}/main.pid --vrrp_pid={run}/vrrp.pid
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
Restart=no
TimeoutStopSec=30
UMask=0077
RuntimeDirectory=raftsman-keepalived
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BROADCAST
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_NETLINK AF_PACKET
{CONFINED}"
    )
}

/// The user that Patroni and PostgreSQL run as, and its group.
pub const POSTGRES_USER: &str = "raftsman-postgres";

/// Patroni's unit. A Patroni that ends leaves its PostgreSQL running, and adopts it when it is started again: systemd ends
/// only the first process, and the agent the rest, where that is wanted. PostgreSQL compiles queries in memory, and Patroni
/// may open a watchdog, which is root's: both are less confined here than other programs.
pub fn patroni_unit() -> String {
    use super::patroni::{DATA, DIR, FILE, RUN, UNIT_SOCKETS};
    let confined: String = CONFINED
        .lines()
        .filter(|line| !line.starts_with("MemoryDenyWriteExecute=") && !line.starts_with("PrivateDevices="))
        .flat_map(|line| [line, "\n"])
        .collect();
    let sockets = UNIT_SOCKETS.trim_start_matches("/run/");
    format!(
        "\
# Written by raftsman-agent, which starts, reloads and stops this unit: do not enable it.
[Unit]
Description=Patroni and PostgreSQL, operated by raftsman
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={POSTGRES_USER}
Group={POSTGRES_USER}
Environment=LC_ALL=C.UTF-8
# Not on every machine.
ExecStartPre=-+/bin/sh -c 'exec /bin/chown {POSTGRES_USER} /dev/watchdog*'
ExecStart=/usr/bin/python3 -I -B {ROOT}/{DIR}/current/start.py {ROOT}/{DIR}/{FILE}
ExecReload=/bin/kill -HUP $MAINPID
WorkingDirectory={ROOT}/{DIR}
KillMode=process
Restart=no
TimeoutStopSec=90
UMask=0077
RuntimeDirectory={sockets}
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
ReadWritePaths={ROOT}/{DATA} {ROOT}/{RUN}
CapabilityBoundingSet=
RestrictSUIDSGID=yes
DevicePolicy=closed
DeviceAllow=/dev/watchdog rw
DeviceAllow=char-watchdog rw
LimitNOFILE=65536
OOMScoreAdjust=-900
{confined}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        insta::assert_snapshot!("agent_unit", agent_unit());
        insta::assert_snapshot!("etcd_unit", etcd_unit());
        insta::assert_snapshot!("haproxy_unit", haproxy_unit());
        insta::assert_snapshot!("keepalived_unit", keepalived_unit());
        insta::assert_snapshot!("patroni_unit", patroni_unit());
    }
}
