//! PostgreSQL clusters of a file → what they are resolved to; Patroni's file, and what an agent refuses in one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use raftsman_core::desired::{Config, Desired, Identity, Node, Postgres, Stack, Usage, UserSlot, resolve};
use raftsman_core::ledger::PostgresLedger;
use raftsman_core::observed::Ledger;
use raftsman_core::render::patroni::{
    self, MissingSecret, OnMachine, Patroni, PgSecret, Programs, digest, filled, foreign_line, setting_allowed,
};
use raftsman_core::spec::postgres::{HbaRule, NodeTags};
use raftsman_core::spec::{self, FlagValue, Name, PostgresVersion, Provider, Subnet, Watchdog, scalars};

/// Three members and a PostgreSQL cluster `pg` with these lines, on such machines.
fn desired(machines: &str, pg: &str) -> Desired {
    let text = format!(
        "fleet: shop\nmachines: {{ {machines} }}\netcd:\n  main:\n    members: 3\n    auth: {{ mode: password }}\n\
         postgres:\n  pg:\n    etcd: main\n{pg}"
    );
    let reading = spec::read(&text);
    let rendered = reading.render("raftsman.yaml", &text, false);
    let spec = reading.spec.or(reading.later).unwrap_or_else(|| panic!("the fixture is wrong:\n{rendered}\n{text}"));
    let network = Some("127.0.42.0/24".parse().expect("a network"));
    let identity = Identity { id: "0f1e".to_owned(), network, places: BTreeMap::new(), zones: BTreeMap::new() };
    resolve(&spec, &identity).expect("addresses")
}

const INCUS: &str = "provider: incus, image: debian, subnet: 10.77.0.0/24, incus: { network: raft, pool: default }";

fn on_incus(pg: &str) -> Stack {
    desired(INCUS, pg).stacks.remove(0)
}

fn only(stack: &Stack) -> (&Postgres, &Node) {
    (&stack.postgres[0], &stack.postgres[0].nodes[0])
}

fn config(stack: &Stack, ledger: &Ledger, user: UserSlot) -> Config {
    let (cluster, node) = only(stack);
    cluster.patroni_file(node, &stack.etcd_hosts(ledger), user)
}

/// Patroni's file of the first node.
fn file(stack: &Stack) -> String {
    let config = config(stack, &Ledger::default(), UserSlot::A);
    assert_eq!(foreign_line(&config.text), None, "{}", config.text);
    assert_eq!(config.digest, digest(&config.text));
    config.text
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

const FULL: &str = r#"    nodes:
      - { name: pg-1, tags: { clonefrom: true, failover_priority: 5 } }
      - { name: pg-2, patroni_name: second }
      - { name: pg-3, tags: { nofailover: true, nosync: true, failover_priority: 0 } }
      - { name: pg-4 }
    version: 17
    patroni: { scope: orders, ttl: 20, loop_wait: 1, retry_timeout: 4 }
    parameters:
      max_connections: 200
      log_line_prefix: '%m [%p] "%q%u@%d" {root}'
      shared_preload_libraries: pg_stat_statements
      pg_stat_statements.track: all
      jit: false
    access:
      - { databases: [orders, sameuser], users: [app, report], from: [10.1.0.0/16, "fd00:1::/64"] }
      - { databases: [all], users: [all], from: [10.2.0.7] }
    certificates: { extra_names: [orders.example.com], extra_addresses: [10.9.9.9] }
    watchdog: { mode: required, safety_margin: -1 }
"#;

#[test]
fn a_file_with_everything_in_it() {
    insta::assert_snapshot!("full", file(&on_incus(FULL)));
}

#[test]
fn a_file_on_this_computer() {
    let stack = desired("provider: local", "    nodes: 3\n").stacks.remove(0);
    insta::assert_snapshot!("local", file(&stack));
}

#[test]
fn each_mode_of_synchronous_replication() {
    let lines = |mode: &str| -> String {
        let text = file(&on_incus(&format!("    nodes: 3\n    synchronous: {{ mode: {mode} }}\n")));
        let lines = text.lines().filter(|line| line.contains("synchronous_")).map(str::trim);
        lines.collect::<Vec<_>>().join(", ")
    };
    let lines = ["strict", "quorum", "preferred", "off"].map(|mode| format!("{mode} → {}", lines(mode))).join("\n");
    insta::assert_snapshot!(lines, @r#"
    strict → synchronous_mode: true, synchronous_mode_strict: true, synchronous_node_count: 1
    quorum → synchronous_mode: "quorum", synchronous_mode_strict: true, synchronous_node_count: 1
    preferred → synchronous_mode: true, synchronous_mode_strict: false, synchronous_node_count: 1
    off → synchronous_mode: false, synchronous_mode_strict: false, synchronous_node_count: 1
    "#);
}

#[test]
fn a_setting_of_the_whole_cluster_changes_no_nodes_digest() {
    let digests = |pg: &str| config(&on_incus(pg), &Ledger::default(), UserSlot::A).digest;
    let plain = digests("    nodes: 3\n");
    assert_eq!(digests("    nodes: 3\n    parameters: { max_connections: 300 }\n"), plain);
    assert_eq!(digests("    nodes: 3\n    synchronous: { mode: quorum }\n"), plain);
    // A node's own parameter would override it.
    assert_ne!(digests("    nodes: 3\n    parameters: { wal_sender_timeout: 20s }\n"), plain);
    assert_ne!(digests("    nodes: 4\n"), plain);
}

#[test]
fn members_that_are_to_go_are_in_it_and_nodes_that_are_to_go_are_let_in() {
    let stack = on_incus("    nodes: 3\n");
    let mut ledger = Ledger::default();
    ledger.etcd.members.insert(name("old-1"), "https://10.77.0.99:2380".to_owned());
    ledger.machines.instances.insert(name("pg-9"), address("10.77.0.98"));
    let started = BTreeMap::from([(name("pg-9"), "incarnation".to_owned())]);
    ledger.postgres.insert(name("pg"), PostgresLedger { started, ..PostgresLedger::default() });
    let read = scalars(&config(&stack, &ledger, UserSlot::B).text).expect("YAML");
    assert_eq!(read["etcd3.hosts"], "10.77.0.11:2379,10.77.0.12:2379,10.77.0.13:2379,10.77.0.99:2379");
    assert_eq!(read["etcd3.username"], stack.postgres[0].etcd_user(UserSlot::B));
    assert!(stack.postgres[0].neighbours(&ledger).contains(&address("10.77.0.98")));
}

#[test]
fn nodes_have_certificates_for_clients_and_for_rest() {
    let stack = on_incus(FULL);
    let (_, node) = only(&stack);
    assert_eq!((node.server.usage, node.rest.usage), (Usage::Server, Usage::ServerAndClient));
    assert_eq!(node.server.all_names(), ["10.77.0.14", "10.9.9.9", "orders.example.com", "pg-1"]);
    assert_eq!(node.rest.all_names(), ["10.77.0.14", "pg-1"]);
    assert_eq!((node.rest.common_name.as_str(), node.rest.organization.as_str()), ("pg-1", "shop"));
}

#[test]
fn nodes_machines_are_as_their_cluster_and_they_themselves_say() {
    let zones = ["a", "b", "c"].map(|zone| format!("{zone}: {{ incus: {{ target: {zone} }} }}")).join(", ");
    let machines = format!("{INCUS}, vcpus: 1, memory: 1GiB, disk: 10GiB, zones: {{ {zones} }}");
    let pg = "    machines: { vcpus: 4, data_disk: 100GiB, zones: [b, c] }\n    nodes:\n      \
              - { name: pg-1 }\n      - { name: pg-2, zone: c, machine: { memory: 8GiB } }\n      - { name: pg-3 }\n";
    let stack = desired(&machines, pg).stacks.remove(0);
    let of = |machine: &str| {
        let machine = stack.machine(&name(machine)).expect("a machine");
        let settings = &machine.settings;
        let zone = machine.place.zone.as_ref().map(ToString::to_string).unwrap_or_default();
        (settings.vcpus, settings.memory.map(|size| size.to_string()), zone, machine.place.pinned)
    };
    let gib = |size: &str| Some(size.to_owned());
    assert_eq!(of("pg-1"), (Some(4), gib("1GiB"), "b".to_owned(), false));
    assert_eq!(of("pg-2"), (Some(4), gib("8GiB"), "c".to_owned(), true));
    assert_eq!(of("main-1"), (Some(1), gib("1GiB"), "a".to_owned(), false));
    assert_eq!(stack.machine(&name("pg-3")).expect("a machine").place.provider, Provider::Incus);
    // A quarter of the disk that the data is on.
    let text = file(&stack);
    assert!(text.contains("max_slot_wal_keep_size: \"25600MB\"\n"), "{text}");
}

#[test]
fn firewalls_let_in_patroni_and_the_nodes() {
    let machines = format!("{INCUS}, firewall: {{ clients_from: [10.9.0.0/16], postgres_from: [10.8.0.0/16] }}");
    let stack = desired(&machines, "    nodes: 2\n    synchronous: { mode: preferred }\n").stacks.remove(0);
    let rules = |machine: &str| stack.firewall(&name(machine), &Ledger::default()).expect("a firewall").text;
    let (member, node) = (rules("main-1"), rules("pg-1"));
    let clients = "ip saddr { 10.9.0.0/16, 10.77.0.11, 10.77.0.12, 10.77.0.13, 10.77.0.14, 10.77.0.15 }";
    assert!(member.contains(&format!("{clients} tcp dport 2379 accept\n")), "{member}");
    assert!(!member.contains("dport 5432") && !member.contains("dport 8008"), "{member}");
    assert!(node.contains("ip saddr { 10.8.0.0/16, 10.77.0.14, 10.77.0.15 } tcp dport 5432 accept\n"), "{node}");
    assert!(node.contains("ip saddr { 10.77.0.14, 10.77.0.15 } tcp dport 8008 accept\n"), "{node}");
    assert!(!node.contains("dport 2379") && !node.contains("dport 2380"), "{node}");
}

/// What the file of a test is made of, with these parameters of PostgreSQL.
struct Sample {
    hosts: BTreeSet<SocketAddr>,
    nodes: BTreeSet<IpAddr>,
    settings: BTreeMap<String, String>,
    access: Vec<HbaRule>,
    watchdog: Watchdog,
}

impl Sample {
    fn new(parameters: &[(&str, FlagValue)]) -> Self {
        let parameter = |(key, value): &(&str, FlagValue)| {
            (format!("postgresql.parameters.{key}"), serde_json::to_string(value).expect("JSON"))
        };
        let subnet = |text: &str| Subnet::parse(text).expect("a network");
        let own = [("ttl", "30"), ("synchronous_mode", "\"quorum\""), ("postgresql.use_slots", "true")];
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self {
            hosts: BTreeSet::from(["10.0.0.1:2379", "[fd00::2]:2379"].map(|text| text.parse().expect("an address"))),
            nodes: BTreeSet::from(["10.0.0.11", "fd00::12"].map(address)),
            settings: own.into_iter().chain(parameters.iter().map(parameter)).collect(),
            access: vec![HbaRule {
                databases: vec!["all".to_owned(), "samerole".to_owned()],
                users: vec!["app".to_owned()],
                from: vec![subnet("10.1.0.0/16"), subnet("fd00::/8"), subnet("0.0.0.0/0")],
            }],
            watchdog: Watchdog::default(),
        }
    }

    fn text(&self, address: IpAddr, programs: Programs, tags: NodeTags) -> String {
        patroni::config(&Patroni {
            scope: "pg",
            namespace: "/service/",
            name: "pg-1",
            address,
            hosts: &self.hosts,
            etcd_user: "pg-patroni-a",
            settings: &self.settings,
            nodes: &self.nodes,
            access: &self.access,
            balancers: &BTreeSet::new(),
            programs,
            slot_wal_mib: 4096,
            watchdog: &self.watchdog,
            tags,
        })
    }

    fn plain(&self) -> String {
        self.text(address("10.0.0.11"), Programs::Package(17), NodeTags::default())
    }
}

/// Values that mean more than themselves to a reader of YAML, to PostgreSQL or to the agent.
const VALUES: [&str; 22] = [
    "",
    " ",
    "on",
    "null",
    "0x10",
    "1e3",
    "~",
    "a: b",
    "# comment",
    "- item",
    "\"",
    "\\",
    "\\\"",
    "' ; drop",
    "{root}/x",
    "{secret:dcs}",
    "{sockets}",
    "{user}",
    "{{root}}",
    "ä 😀",
    "\u{2028}\u{feff}\u{fffd}",
    "%m [%p] *&!|>@`",
];

#[test]
fn what_is_written_is_accepted_and_read_as_it_was_meant() {
    let names: Vec<String> = (0..VALUES.len()).map(|index| format!("parameter_{index}")).collect();
    let texts = names.iter().zip(VALUES).map(|(name, text)| (name.as_str(), FlagValue::Text(text.to_owned())));
    let more = [
        ("max_connections", FlagValue::Integer(200)),
        ("geqo_seed", FlagValue::Integer(i64::MIN)),
        ("on", FlagValue::Bool(true)),
        ("123", FlagValue::Bool(false)),
        ("pg_stat_statements.track", FlagValue::Text("all".to_owned())),
    ];
    let sample = Sample::new(&texts.chain(more).collect::<Vec<_>>());
    let version = PostgresVersion::parse("17.11").expect("a version");
    let all =
        NodeTags { nofailover: false, noloadbalance: true, nosync: true, clonefrom: true, failover_priority: Some(3) };
    let never = NodeTags { nofailover: true, failover_priority: Some(0), ..NodeTags::default() };
    for at in ["10.0.0.11", "fd00::12", "127.0.42.4"] {
        for programs in [Programs::Package(15), Programs::Installed(version)] {
            for tags in [NodeTags::default(), all, never] {
                let text = sample.text(address(at), programs, tags);
                assert_eq!(foreign_line(&text), None, "{text}");
                let read = scalars(&text).unwrap_or_else(|| panic!("no YAML:\n{text}"));
                for (name, value) in names.iter().zip(VALUES) {
                    assert_eq!(read[&format!("bootstrap.dcs.postgresql.parameters.{name}")], value, "{text}");
                }
                assert_eq!(read["bootstrap.dcs.postgresql.parameters.pg_stat_statements.track"], "all");
                assert_eq!(read["postgresql.listen"], SocketAddr::new(address(at), 5432).to_string());
            }
        }
    }
}

#[test]
fn secrets_are_put_in_their_places_only() {
    let sample = Sample::new(&[("search_path", FlagValue::Text("{secret:dcs} {root}".to_owned()))]);
    let text = sample.plain();
    let secrets: BTreeMap<PgSecret, String> =
        PgSecret::ALL.into_iter().map(|secret| (secret, format!("\"{{secret:rest}}\n{}", secret.name()))).collect();
    let root = "/srv/a \"b\\c";
    let on_machine = |secrets| OnMachine { root, sockets: "/run/x", user: "daemon", secrets };
    let read = scalars(&filled(&text, &on_machine(&secrets)).expect("all secrets")).expect("YAML");
    let section = "postgresql.authentication";
    for (path, secret) in [
        ("etcd3.password".to_owned(), "dcs"),
        ("restapi.authentication.password".to_owned(), "rest"),
        (format!("{section}.replication.password"), "replicator"),
        (format!("{section}.rewind.password"), "rewind"),
    ] {
        assert_eq!(read[&path], format!("\"{{secret:rest}}\n{secret}"), "{path}");
    }
    assert_eq!(read["bootstrap.dcs.postgresql.parameters.search_path"], "{secret:dcs} {root}");
    assert_eq!(read["postgresql.data_dir"], format!("{root}/{}", patroni::DATA));
    assert_eq!(read["postgresql.parameters.unix_socket_directories"], "/run/x");
    assert_eq!(read["postgresql.pg_ident"], "raftsman daemon postgres,raftsman root postgres");
    let mut fewer = secrets.clone();
    fewer.remove(&PgSecret::Rewind);
    assert_eq!(filled(&text, &on_machine(&fewer)), Err(MissingSecret(PgSecret::Rewind)));
    assert!(patroni::sockets("/a/very/long/root").len() + "/.s.PGSQL.5432.lock".len() < patroni::LONGEST_SOCKET);
}

/// Keys of Patroni's file that run programs, read and write files, or open what is closed.
const KEYS: [&str; 36] = [
    "allowlist",
    "archive_cleanup_command",
    "basebackup",
    "before_stop",
    "bin_name",
    "callbacks",
    "citus",
    "command",
    "config_dir",
    "consul",
    "create_replica_method",
    "create_replica_methods",
    "custom_conf",
    "dir",
    "insecure",
    "keyfile_password",
    "krbsrvname",
    "kubernetes",
    "loggers",
    "method",
    "on_reload",
    "on_restart",
    "on_role_change",
    "on_start",
    "on_stop",
    "pgbackrest",
    "post_bootstrap",
    "post_init",
    "pre_promote",
    "proxy_address",
    "raft",
    "recovery_conf",
    "remove_data_directory_on_rewind_failure",
    "replicatefrom",
    "standby_cluster",
    "users",
];

/// Parameters of PostgreSQL that do.
const PARAMETERS: [&str; 14] = [
    "archive_command",
    "archive_library",
    "archive_mode",
    "dynamic_library_path",
    "extension_destdir",
    "hba_file",
    "include",
    "jit_provider",
    "local_preload_libraries",
    "log_directory",
    "restore_command",
    "shared_preload_libraries",
    "ssl_passphrase_command",
    "synchronous_standby_names",
];

#[test]
fn no_dangerous_key_is_accepted_anywhere() {
    let text = Sample::new(&[("max_connections", FlagValue::Integer(200))]).plain();
    let lines: Vec<&str> = text.lines().collect();
    // Deeper are only the parameters, and what PostgreSQL has no parameter for does nothing there.
    let keys = KEYS.iter().flat_map(|key| [0, 2, 4, 6].map(|indent| (key, indent)));
    let parameters = PARAMETERS.iter().flat_map(|key| [0, 2, 4, 6, 8].map(|indent| (key, indent)));
    let ways = keys.chain(parameters).flat_map(|(key, indent)| {
        let ways =
            [format!("{key}: \"/bin/sh -c id\""), format!("{key}:"), format!("\"{key}\": true"), format!("- {key}: 1")];
        ways.map(|way| format!("{:indent$}{way}", ""))
    });
    let ways: Vec<String> = ways.collect();
    for place in 0..=lines.len() {
        // What a line is in is decided by those from the last top-level key on.
        let from = lines[..place].iter().rposition(|line| !line.starts_with(' ')).unwrap_or(0);
        let before: String = lines[from..place].iter().map(|line| format!("{line}\n")).collect();
        for way in &ways {
            assert_eq!(foreign_line(&format!("{before}{way}\n")), Some(place - from + 1), "{before}{way}");
        }
    }
}

#[test]
fn no_line_can_be_another_one() {
    let text = Sample::new(&[("max_connections", FlagValue::Integer(200))]).plain();
    for (from, to) in [
        ("verify_client: \"required\"", "verify_client: \"none\""),
        ("protocol: \"https\"", "protocol: \"http\""),
        ("{secret:rest}", "{secret:dcs}"),
        ("{secret:rest}", "known"),
        ("sslmode: \"verify-full\"", "sslmode: \"disable\""),
        ("ssl: \"on\"", "ssl: \"off\""),
        ("{root}/postgres/data", "/etc"),
        ("{root}/postgres/run/pgpass", "/etc/cron.d/x"),
        ("/usr/lib/postgresql/17/bin", "/tmp/bin"),
        ("/usr/lib/postgresql/17/bin", "/usr/lib/postgresql/../../tmp/bin"),
        ("/usr/lib/postgresql/17/bin", "{root}/postgres/data/bin"),
        ("{sockets}", "/tmp"),
        ("raftsman {user} postgres", "raftsman /^.*$ postgres"),
        ("raftsman {user} postgres", "raftsman \\x7buser} postgres"),
        ("peer map=raftsman", "trust"),
        ("hostssl replication", "host replication"),
        ("scram-sha-256\"\n    - \"host all replicator", "trust\"\n    - \"host all replicator"),
        ("host all all all reject", "host all all all trust"),
        ("hostssl all,\\\"samerole\\\" app", "hostssl @file app"),
        ("hostssl all,\\\"samerole\\\" app", "hostssl replication app"),
        ("hostssl all,\\\"samerole\\\" app", "hostssl all +app"),
        ("/dev/watchdog", "/etc/passwd"),
        ("/dev/watchdog", "/dev/../etc/passwd"),
        ("\"max_connections\": 200", "\"max_connections\": 0200"),
        ("\"max_connections\": 200", "\"max_connections\": 200 # more"),
        ("\"max_connections\": 200", "\"max_connections\": !!python/name:os.system"),
        ("\"max_connections\": 200", "\"max_connections\": \"a\", \"b\""),
        ("\"max_connections\": 200", "\"max_connections\": \"a\\nb\""),
        ("\"max_connections\": 200", "\"max_connections\": \"a\\u000ab\""),
        ("\"max_connections\": 200", "\"max_connections\": \"{secret:dcs}\""),
        ("\"max_connections\": 200", "\"max_connections\": |"),
        ("\"max_connections\": 200", "\"max_connections\": &a 1"),
        ("\"max_connections\": 200", "\"max_connections\": 200\r"),
        ("\"max_connections\": 200", "\"max_connections\": \"a\u{85}b\""),
        ("\"max_connections\": 200", "\"Archive_Command\": \"x\""),
        ("ttl: 30", "ttl: \"30\""),
        ("synchronous_mode: \"quorum\"", "synchronous_mode: \"x\""),
        ("data-checksums", "no-data-checksums"),
        ("listen: \"10.0.0.11:5432\"", "listen: \"*:5432\""),
        ("scope: \"pg\"", "scope: pg"),
        ("scope: \"pg\"", "%YAML 1.1"),
        ("scope: \"pg\"", "---"),
        ("scope: \"pg\"", "<<: *a"),
        ("scope: \"pg\"", "\tscope: \"pg\""),
        ("  level: \"INFO\"", "      level: \"INFO\""),
    ] {
        assert!(text.contains(from), "{from} is not in it:\n{text}");
        let mutated = text.replacen(from, to, 1);
        assert!(foreign_line(&mutated).is_some(), "{to}\n{mutated}");
    }
}

#[test]
fn settings_of_the_whole_cluster_are_a_closed_list() {
    for (path, json) in only(&on_incus(FULL)).0.settings.iter() {
        assert!(setting_allowed(path, json), "{path}: {json}");
    }
    for (path, json) in [
        ("postgresql.parameters.archive_command", "\"/bin/sh\""),
        ("postgresql.parameters.shared_preload_libraries", "\"/tmp/x\""),
        ("postgresql.parameters.ssl", "\"off\""),
        ("postgresql.parameters.a b", "1"),
        ("postgresql.parameters.max_connections", "[1]"),
        ("postgresql.parameters.max_connections", "null"),
        ("postgresql.parameters.max_connections", "no JSON"),
        ("postgresql.pg_hba", "[\"host all all all trust\"]"),
        ("postgresql.callbacks.on_start", "\"/bin/sh\""),
        ("postgresql.recovery_conf.restore_command", "\"/bin/sh\""),
        ("postgresql.create_replica_methods", "\"x\""),
        ("standby_cluster.create_replica_methods", "\"x\""),
        ("standby_cluster.host", "\"x\""),
        ("slots", "{}"),
        ("pause", "true"),
        ("ttl", "-1"),
        ("ttl", "\"30\""),
        ("failsafe_mode", "\"on\""),
    ] {
        assert!(!setting_allowed(path, json), "{path}: {json}");
    }
}
