//! Wrong or questionable files → the words people see, one snapshot each.

use raftsman_core::spec::read;

/// A file with one cluster, `main`, that has these lines besides three members.
fn cluster(lines: &str) -> String {
    let lines: Vec<String> = lines.lines().map(|line| format!("    {line}")).collect();
    format!("fleet: shop\netcd:\n  main:\n    members: 3\n{}\n", lines.join("\n"))
}

/// A file with these lines under `machines`.
fn machines(lines: &str) -> String {
    let lines: Vec<String> = lines.lines().map(|line| format!("  {line}")).collect();
    format!("fleet: shop\nmachines:\n{}\netcd: {{ main: {{ members: 3 }} }}\n", lines.join("\n"))
}

/// A file with one cluster, `main`, that has these members.
fn members(lines: &str) -> String {
    let lines: Vec<String> = lines.lines().map(|line| format!("      {line}")).collect();
    format!("fleet: shop\netcd:\n  main:\n    members:\n{}\n", lines.join("\n"))
}

/// A file with these lines under `backups`.
fn backups(lines: &str) -> String {
    let lines: Vec<String> = lines.lines().map(|line| format!("  {line}")).collect();
    format!("fleet: shop\netcd: {{ main: {{ members: 3 }} }}\nbackups:\n{}\n", lines.join("\n"))
}

/// A file with these lines under `balancers`, and a cluster `main` on hosts.
fn balancers(lines: &str) -> String {
    let lines: Vec<String> = lines.lines().map(|line| format!("  {line}")).collect();
    format!(
        "fleet: shop
machines: {{ provider: hosts }}
etcd:
  main:
    members:
      - {{ name: db1, address: 10.0.0.11 }}
      - {{ name: db2, address: 10.0.0.12 }}
      - {{ name: db3, address: 10.0.0.13 }}
balancers:
{}
",
        lines.join("\n")
    )
}

/// A file with one PostgreSQL cluster, `app`, that has these lines, on an etcd cluster that Patroni can use.
fn postgres(lines: &str) -> String {
    let lines: Vec<String> = lines.lines().map(|line| format!("    {line}")).collect();
    format!(
        "fleet: shop\netcd:\n  main: {{ members: 3, auth: {{ mode: password }} }}\npostgres:\n  app:\n{}\n",
        lines.join("\n")
    )
}

/// The same, with three nodes on that etcd cluster.
fn nodes(lines: &str) -> String {
    postgres(&format!("etcd: main\nnodes: 3\n{lines}"))
}

fn whole(text: &str) -> String {
    text.to_owned()
}

fn snapshot(name: &str, text: &str) {
    let reading = read(text);
    assert_eq!(reading.spec.is_some(), reading.errors() == 0);
    assert!(!reading.diagnostics.is_empty(), "{name} reads clean");
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("spec_snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, reading.render("raftsman.yaml", text, false).trim_end()));
}

macro_rules! cases {
    ($($name:ident: $shape:ident($text:expr);)*) => {
        $(#[test] fn $name() { snapshot(stringify!($name), &$shape($text)); })*
    };
}

// The YAML itself.
cases! {
    yaml_empty: whole("");
    yaml_only_comments: whole("# nothing yet\n");
    yaml_tab: whole("fleet: shop\netcd:\n\tmain:\n\t\tmembers: 3\n");
    yaml_unclosed_quote: whole("fleet: \"shop\netcd: {}\n");
    yaml_unclosed_bracket: whole("fleet: shop\netcd: { main: { members: 3 }\n");
    yaml_indentation: whole("fleet: shop\netcd:\n  main:\n    members: 3\n   version: 3.6.15\n");
    yaml_colon: whole("fleet: shop: 2\netcd:\n  main: { members: 3 }\n");
    yaml_missing_colon: whole("fleet: shop\netcd\n");
    yaml_two_documents: whole("fleet: shop\netcd: { main: { members: 3 } }\n---\nfleet: other\n");
    yaml_duplicate_key: cluster("version: 3.6.15\nquota: 2GiB\nversion: 3.5.34");
    yaml_duplicate_cluster: whole("fleet: shop\netcd:\n  main: { members: 3 }\n  spare: { members: 3 }\n  main: { members: 5 }\n");
    yaml_alias_unknown: cluster("timers: *slow");
    yaml_alias_in_itself: cluster("flags: &a\n  max-wals: *a");
    yaml_alias_bomb: whole(concat!(
        "a: &a [x, x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n",
        "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]\n",
        "e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d]\n",
    ));
    yaml_too_deep: whole(&"[".repeat(1000));
    yaml_tag: cluster("quota: !size 8");
    yaml_merge_key: cluster("timers:\n  <<: { heartbeat: 100ms }");
    yaml_list_as_key: whole("fleet: {{ name }}\n");
    yaml_not_a_mapping: whole("- fleet: shop\n");
    yaml_windows_and_umlauts: whole("fleet: shop\r\n# für später\r\netcd:\r\n  main:\r\n    members: drei\r\n");
}

// Keys and types.
cases! {
    key_unknown_top: whole("fleet: shop\nclusters: {}\netcd: { main: { members: 3 } }\n");
    key_misspelt_top: whole("flet: shop\netcd: { main: { members: 3 } }\n");
    key_misspelt: whole("fleet: shop\netcd:\n  main:\n    membres: 3\n");
    key_unknown: cluster("replicas: 3");
    key_hyphen: cluster("log-level: info");
    key_missing_fleet: whole("etcd: { main: { members: 3 } }\n");
    key_missing_members: whole("fleet: shop\netcd:\n  main:\n    version: 3.6.15\n");
    key_missing_members_of_nothing: whole("fleet: shop\netcd:\n  main:\n");
    key_missing_in_item: members("- name: etcd-1\n- address: 127.0.42.2\n- name: etcd-3");
    type_fleet_name: whole("fleet: My Shop\netcd: { main: { members: 3 } }\n");
    type_fleet_empty: whole("fleet:\netcd: { main: { members: 3 } }\n");
    type_cluster_name: whole("fleet: shop\netcd:\n  Main_1: { members: 3 }\n");
    type_clusters_as_list: whole("fleet: shop\netcd:\n  - name: main\n    members: 3\n");
    type_members_text: whole("fleet: shop\netcd: { main: { members: three } }\n");
    type_members_mapping: members("etcd-1: 127.0.42.1");
    type_members_negative: whole("fleet: shop\netcd: { main: { members: -3 } }\n");
    type_bool_yes: cluster("gateway: yes");
    type_bool_quoted: cluster("v2_api: \"true\"");
    type_size_kubernetes: cluster("quota: 8Gi");
    type_size_fraction: cluster("quota: 1.5GiB");
    type_size_nothing: cluster("quota:");
    type_duration_without_unit: cluster("timers: { heartbeat: 100 }");
    type_duration_word: cluster("certificates: { validity: 90 days }");
    type_duration_spelled: cluster("certificates: { validity: 90days }");
    type_duration_negative: cluster("certificates: { validity: -1d }");
    type_duration_list: cluster("certificates: { validity: [90d] }");
    type_version_two_numbers: cluster("version: 3.6");
    type_version_prerelease: cluster("version: 3.7.0-rc.1");
    type_retention: cluster("auto_compaction: { retention: an hour }");
    type_choice: cluster("auth: { mode: passwort }");
    type_choice_unknown: cluster("log_level: loud");
    type_source_word: cluster("source: archive");
    type_source_two: cluster("source: { file: etcd, directory: bin }");
    type_source_unknown: cluster("source: { url: https://example.com/etcd }");
    type_source_nothing: cluster("source: {}");
    type_source_path_with_value: cluster("source: { path: /usr/bin/etcd }");
    type_address: members("- { name: a, address: 127.0.42.300 }\n- { name: b, address: \"127.0.42.2:2379\" }\n- { name: c }");
    type_struct: cluster("timers: fast");
    type_list: cluster("certificates: { extra_names: etcd.example.com }");
    type_flag_list: cluster("flags:\n  cors: [a, b]");
    type_port: machines("logs:\n  forward: { host: logs, port: 70000, ca_cert: ca.pem, shared_key: { file: k } }");
    type_authority_without_key: cluster("ca:\n  peers:\n    brought: { certificate: ca.pem }");
}

// Secrets: never shown.
cases! {
    secret_inline: cluster("auth:\n  mode: password\n  root_password: hunter2");
    secret_inline_number: cluster("auth:\n  mode: password\n  root_password: 123456");
    secret_wrong_key: cluster("auth:\n  mode: password\n  root_password: { value: hunter2 }");
    secret_list: cluster("auth:\n  mode: password\n  root_password: [hunter2]");
    secret_misspelt_key: cluster("auth:\n  mode: password\n  root_pasword: hunter2");
    secret_block: cluster("ca:\n  peers:\n    brought:\n      certificate: ca.pem\n      key: |\n        hunter2\n        hunter2");
    secret_syntax_error: cluster("auth:\n  root_password: \"hunter2\" hunter2");
    secret_env_with_dollar: cluster("auth:\n  mode: password\n  root_password: { env: $hunter2 }");
    secret_file_empty: cluster("auth:\n  mode: password\n  root_password: { file: \"\" }");
    secret_private_ssh_key: machines("admin:\n  ssh_keys:\n    - \"-----BEGIN OPENSSH PRIVATE KEY----- hunter2\"");
}

// Machines.
cases! {
    provider_not_yet: machines("provider: openstack");
    provider_unknown: machines("provider: vmware");
    provider_ignores: machines("vcpus: 2\nmemory: 4GiB\ndisk: 10GiB\nimage: debian-13\ninstall_dependencies: false");
    provider_ignores_boot: machines("subnet: 10.77.0.0/24\ngateway: 10.77.0.1\ndns: { servers: [10.77.0.1] }\nfirewall: true\nnode_exporter: true\nupdates: security\nmirror: { packages: \"http://mirror/debian\" }");
    network_not_loopback: machines("network: 10.0.0.0/24");
    network_prefix: machines("network: 127.0.0.0/8");
    network_not_first: machines("network: 127.0.42.1/24");
    network_localhost: machines("network: 127.0.0.0/24");
    network_full: whole("fleet: shop\nmachines: { network: 127.0.42.0/24 }\netcd:\n  main: { members: 300 }\n");
    size_small: machines("memory: 64MiB\nvcpus: 0");
    admin_bad_keys: machines("admin:\n  user: root\n  ssh_keys: [\"ssh-dss AAAA\", \"ssh-ed25519 AAAAC3\", nonsense]");
    admin_locked_out: machines("admin: { user: ops }");
    time_sources: machines("time:\n  servers: [{ url: \"ntp://time.example.com\" }]\n  makestep: { threshold: 0, limit: 0 }");
    time_none: machines("time: {}");
    log_endpoints: machines("logs:\n  dynamic: { key_prefix: /f/, endpoints: [10.0.0.5, \"https://10.0.0.6:2379\", \"fd00::5:2379\"], ca_cert: ca.pem, username: u, password: { file: p } }");
    log_auth_both: machines("logs:\n  dynamic: { key_prefix: /f/, endpoints: [\"10.0.0.5:2379\"], ca_cert: ca.pem, certificate: c.pem, username: u, password: { file: p } }");
    log_host_with_port: machines("logs:\n  forward: { host: \"logs:24224\", port: 0, ca_cert: ca.pem, shared_key: { env: SHARED_KEY } }");
    logs_nowhere: machines("logs: { etcd_tag: \"a b\" }");
    hosts_nowhere: machines("provider: hosts");
    ssh_elsewhere: machines("ssh: { user: deploy }");
    provider_hosts_ignores: machines("provider: hosts\nmemory: 4GiB\nfirewall: true");
    admin_user: machines("admin: { user: 1st }");
    admin_user_taken: machines("admin: { user: raftsman-etcd }");
    log_hostname: machines("logs:\n  etcd_tag: ${HOME}\n  forward: { host: logs, hostname: \"a b\", ca_cert: ca.pem, shared_key: { env: SHARED_KEY } }");
    log_control: machines("logs:\n  dynamic: { key_prefix: \"/f/\\n\", endpoints: [\"10.0.0.5:2379\"], ca_cert: ca.pem, username: \"a\\tb\", password: { file: p } }");
    subnet_host_bits: machines("subnet: 10.77.0.1/24");
    subnet_no_network: machines("subnet: ten");
    subnet_prefix: machines("subnet: 10.77.0.0/33");
    subnet_number: machines("subnet: 24");
    subnet_small: machines("subnet: 10.77.0.1");
    subnet_impossible: machines("subnet: 127.0.0.0/8");
    subnet_unreachable: machines("subnet: 10.77.0.0/24");
    subnet_without_names: machines("subnet: 10.77.0.0/24\ngateway: 10.77.0.1");
    subnet_of_others: whole("fleet: shop\nmachines: { provider: libvirt, image: debian-13, subnet: 10.77.0.0/24, gateway: 10.77.0.1, dns: { servers: [10.77.0.1] } }\netcd:\n  main:\n    members:\n      - { name: a, address: 10.77.0.1 }\n      - { name: b, address: 10.78.0.2 }\n      - { name: c, address: 10.77.0.255 }\n");
    incus_ignored: machines("incus: { pool: default }");
    incus_bare: machines("provider: incus\ndata_disk: 10GiB");
    incus_server: machines("provider: incus\nimage: debian\nsubnet: 10.77.0.0/24\ninstall_dependencies: false\nincus: { network: br0, server: incus.example.org }");
    incus_trust: machines("provider: incus\nimage: debian\nsubnet: 10.77.0.0/24\ninstall_dependencies: false\nincus: { network: \"br 0\", server: \"https://incus.example.org:8443\", certificate: client.crt, key: client.key }");
    incus_socket_needs_no_key: machines("provider: incus\nimage: debian\nsubnet: 10.77.0.0/24\ninstall_dependencies: false\nincus: { network: br0, key: client.key }");
    logs_not_fetched: machines("provider: incus\nimage: debian\nsubnet: 10.77.0.0/24\ninstall_dependencies: false\nincus: { network: br0 }\nlogs: { dynamic: { key_prefix: /logs/, endpoints: [\"10.77.0.9:2379\"], ca_cert: ca.pem } }");
    libvirt_ignored: machines("libvirt: { pool: default }");
    libvirt_image_none: machines("provider: libvirt\nsubnet: 10.77.0.0/24\ninstall_dependencies: false");
    libvirt_no_subnet: machines("provider: libvirt\nimage: debian-13.qcow2\ninstall_dependencies: false");
    libvirt_names: machines("provider: libvirt\nimage: debian-13.qcow2\nsubnet: 10.77.0.0/24\ninstall_dependencies: false\nlibvirt: { uri: kvm1, pool: \"\" }");
    libvirt_both: machines("provider: libvirt\nimage: debian-13.qcow2\nsubnet: 10.77.0.0/24\ninstall_dependencies: false\nlibvirt: { network: lan, macvtap: enp3s0, uri: \"qemu+ssh://kvm1/system\" }");
    libvirt_macvtap_host: machines("provider: libvirt\nimage: debian-13.qcow2\nsubnet: 10.77.0.0/24\ninstall_dependencies: false\nlibvirt: { macvtap: enp3s0 }");
    libvirt_macvtap_dhcp: whole("fleet: shop\nmachines:\n  provider: libvirt\n  image: debian-13.qcow2\n  libvirt: { macvtap: enp3s0, uri: \"qemu+ssh://kvm1/system\" }\netcd: { main: { members: [{ name: a, address: 10.77.0.11 }] } }\n");
    libvirt_macs: whole("fleet: shop\nmachines:\n  provider: libvirt\n  image: debian-13.qcow2\n  subnet: 10.77.0.0/24\n  install_dependencies: false\n  libvirt:\n    macs: { a: \"52:54:00:de:e3\", b: \"53:54:00:de:e3:65\", d: \"52:54:00:de:e3:65\" }\n    interfaces:\n    - { network: backup, subnet: 10.80.0.0/24, addresses: { a: 10.80.0.11, b: 10.80.0.12, c: 10.80.0.13 }, macs: { a: \"52:54:00:DE:E3:65\" } }\netcd: { main: { members: [{ name: a }, { name: b }, { name: c }] } }\n");
    libvirt_interfaces: whole("fleet: shop\nmachines:\n  provider: libvirt\n  image: debian-13.qcow2\n  subnet: 10.77.0.0/24\n  install_dependencies: false\n  libvirt:\n    interfaces:\n    - { subnet: 10.80.0.0/24, gateway: 10.81.0.1, addresses: { a: 10.80.0.11, b: 10.80.0.11, c: 10.81.0.13, d: 10.80.0.14 } }\n    - { network: backup, macvtap: enp4s0, gateway: 10.82.0.1, addresses: { a: 10.82.0.11 } }\n    - { macvtap: enp5s0, subnet: 10.83.0.0/24, addresses: { a: 10.83.0.11 } }\netcd: { main: { members: [{ name: a }, { name: b }, { name: c }] } }\n");
    gateway_alone: machines("gateway: 10.77.0.1");
    gateway_outside: machines("subnet: 10.77.0.0/24\ngateway: 10.78.0.1\ninstall_dependencies: false");
    dns_empty: machines("dns: {}");
    dns_wrong: machines("dns:\n  servers: [127.0.0.53, 10.0.0.1, 10.0.0.2, 10.0.0.3]\n  search: [\"a b\", example.com]");
    dns_name_as_server: machines("dns: { servers: [dns.example.com] }");
    firewall_word: machines("firewall: strict");
    firewall_door_unknown: machines("firewall: { ssh: [10.0.0.0/8] }");
    firewall_door_wrong: machines("firewall: { ssh_from: [10.0.0.0/8, office] }");
    firewall_locked_out: machines("firewall: { operators_from: [], clients_from: [] }");
    firewall_nothing_behind: machines("firewall: { metrics_from: [10.0.0.5] }");
    updates_word: machines("updates: all");
    updates_bool: machines("updates: false");
    mirror_wrong: machines("mirror: { packages: \"ftp://mirror/debian\", security: \"http://user:hunter2@mirror/debian\" }");
    mirror_path: machines("mirror: { packages: \"http://mirror:0/debian\", security: \"http://mirror/debian security\" }");
    mirror_text: machines("mirror: http://mirror/debian");
    state_home: whole("fleet: shop\nstate: ~/raftsman\netcd: { main: { members: 3 } }\n");
    state_empty: whole("fleet: shop\nstate: \"\"\netcd: { main: { members: 3 } }\n");
}

// Members.
cases! {
    clusters_none: whole("fleet: shop\n");
    clusters_empty: whole("fleet: shop\netcd:\n");
    members_none: whole("fleet: shop\netcd: { main: { members: 0 } }\n");
    members_empty_list: whole("fleet: shop\netcd: { main: { members: [] } }\n");
    members_one: whole("fleet: shop\netcd: { main: { members: 1 } }\n");
    members_two: whole("fleet: shop\netcd: { main: { members: 2 } }\n");
    members_four: whole("fleet: shop\netcd: { main: { members: 4 } }\n");
    members_eight: whole("fleet: shop\netcd: { main: { members: 8 } }\n");
    members_eleven: whole("fleet: shop\netcd: { main: { members: 11 } }\n");
    member_twice: members("- name: etcd-1\n- name: etcd-2\n- name: etcd-1");
    member_in_two_clusters: whole("fleet: shop\netcd:\n  a: { members: [{ name: x }, { name: y }, { name: z }] }\n  b: { members: [{ name: u }, { name: y }, { name: w }] }\n");
    member_named_like_generated: whole("fleet: shop\netcd:\n  main: { members: 3 }\n  spare: { members: [{ name: main-2 }, { name: s-2 }, { name: s-3 }] }\n");
    member_name_too_long: whole(&format!("fleet: shop\netcd:\n  {}: {{ members: 3 }}\n", "a".repeat(62)));
    address_twice: members("- { name: a, address: 127.0.42.1 }\n- { name: b, address: 127.0.42.1 }\n- { name: c, address: 127.0.42.3 }");
    address_impossible: members("- { name: a, address: 0.0.0.0 }\n- { name: b, address: 224.0.0.1 }\n- { name: c, address: 255.255.255.255 }");
    address_not_local: members("- { name: a, address: 10.0.0.1 }\n- { name: b, address: \"::1\" }\n- { name: c, address: 127.0.0.1 }");
    address_outside: whole("fleet: shop\nmachines: { network: 127.0.42.0/24 }\netcd:\n  main:\n    members:\n      - { name: a, address: 127.0.43.1 }\n      - { name: b, address: 127.0.42.255 }\n      - { name: c }\n");
    token_twice: whole("fleet: shop\netcd:\n  a: { members: 3, token: same }\n  b: { members: 3, token: same }\n");
    token_like_default: whole("fleet: shop\netcd:\n  a: { members: 3 }\n  b: { members: 3, token: shop-a }\n");
    token_empty: cluster("token: \"\"");
}

// A cluster's settings.
cases! {
    version_too_old: cluster("version: 3.3.27");
    version_too_new: cluster("version: 3.8.0");
    version_end_of_life: cluster("version: 3.4.45");
    version_corrupts: cluster("version: 3.5.2");
    version_auth_bypass: cluster("version: 3.6.13");
    v2_api_gone: cluster("v2_api: true");
    v2_api_old: cluster("version: 3.5.34\nv2_api: true");
    gateway_with_certificates: cluster("gateway: true");
    acceptance_unused: whole("fleet: shop\naccept_warnings: [members-even, quota-larg]\netcd:\n  main: { members: 4 }\n");
    gateway_off_with_password: cluster("auth: { mode: password }\ngateway: false");
    password_with_certificates: cluster("auth: { root_password: { file: root.txt } }");
    auth_off: cluster("auth: { mode: none }");
    quota_zero: cluster("quota: 0");
    quota_large: cluster("quota: 16GiB");
    quota_small: cluster("quota: 1MiB");
    compaction_off: cluster("auto_compaction: { retention: 0 }");
    compaction_age_by_revision: cluster("auto_compaction: { retention: 1h }");
    compaction_revisions_by_age: cluster("auto_compaction:\n  mode: periodic\n  retention: 1000");
    compaction_short: cluster("auto_compaction: { retention: 5 }");
    maintenance_often: cluster("maintenance:\n  defragment: { free: 5%, at_least: 10KiB }");
    maintenance_window_alone: cluster("maintenance:\n  window: { from: 02:00, to: 04:00 }");
    maintenance_percent: cluster("maintenance: { defragment: { free: 50 } }");
    maintenance_time: cluster("maintenance: { defragment: {}, window: { from: 2am, to: 24:00 } }");
    maintenance_day: cluster("maintenance: { defragment: {}, window: { days: [sunday], from: 02:00, to: 04:00 } }");
    timers_measured_and_more: cluster("timers: { measured: true, heartbeat: 100ms }");
    timers_measured_in_part: cluster("timers: { heartbeat: measured, election: 1s }");
    timers_number: cluster("timers: 100ms");
    timers_list: cluster("timers: [100ms, 1s]");
    election_short: cluster("timers: { heartbeat: 200ms }");
    election_short_both: cluster("timers:\n  heartbeat: 500ms\n  election: 2s");
    election_long: cluster("timers: { election: 1m }");
    heartbeat_zero: cluster("timers: { heartbeat: 0 }");
    heartbeat_short: cluster("timers: { heartbeat: 1ms }");
    corruption_checks_off: cluster("corruption_checks: { initial: false, compact_hash: false }");
    renew_too_early: cluster("certificates: { validity: 24h }");
    renew_never: cluster("certificates: { renew_before: 0 }");
    validity_short: cluster("certificates: { validity: 10m, renew_before: 1m }");
    validity_long: cluster("certificates: { validity: 9y }");
    ca_validity_short: cluster("certificates: { ca_validity: 30d }");
    extra_names: cluster("certificates:\n  organization: \"\"\n  extra_names: [\"https://etcd.example.com\", 10.0.0.5, etcd_1, \"*.ok.example.com\", \"a..b\"]\n  extra_addresses: [0.0.0.0]");
    ca_shared: cluster("ca:\n  peers: { brought: { certificate: ca.pem, key: { file: ca.key } } }\n  clients: { brought: { certificate: ./ca.pem, key: { file: ca.key } } }");
    ca_key_is_certificate: cluster("ca:\n  peers: { brought: { certificate: ca.pem, key: { file: ca.pem } } }");
    archive_sha256: cluster("source:\n  archive: { file: etcd-v3.6.15-linux-amd64.tar.gz, sha256: abc }");
    archive_of_other_version: cluster(&format!("source:\n  archive: {{ file: dl/etcd-v3.5.34-linux-amd64.tar.gz, sha256: {} }}", "0".repeat(64)));
    archive_two_places: cluster(&format!("source:\n  archive: {{ file: etcd.tar.gz, url: \"https://example.com/etcd.tar.gz\", sha256: {} }}", "0".repeat(64)));
    archive_no_place: cluster(&format!("source:\n  archive: {{ sha256: {} }}", "0".repeat(64)));
    archive_insecure: cluster(&format!("source:\n  archive: {{ url: \"http://example.com/etcd.tar.gz\", sha256: {} }}", "0".repeat(64)));
    archive_without_this_hash: cluster(&format!("source:\n  archive: {{ url: \"https://example.com/v{{version}}.tar.gz\", sha256: {{ 3.5.34: {} }} }}", "0".repeat(64)));
    archive_several_hashes: cluster(&format!("source:\n  archive:\n    url: https://example.com/etcd.tar.gz\n    sha256:\n      3.6.15: {0}\n      3.5.34: {0}", "0".repeat(64)));
    archive_hash_shape: cluster("source:\n  archive: { file: etcd.tar.gz, sha256: [] }");
    archive_hash_version: cluster("source:\n  archive: { file: etcd.tar.gz, sha256: { newest: abc } }");
    archive_url: cluster(&format!("source:\n  archive: {{ file: \"https://example.com/etcd.tar.gz\", sha256: {} }}", "0".repeat(64)));
    package_invalid: cluster("source: { package: \"etcd-server=3.6\" }");
    one_binary_two_versions: whole("fleet: shop\netcd:\n  a: { members: 3, version: 3.6.15 }\n  b: { members: 3, version: 3.5.34 }\n");
    flag_owned: cluster("flags:\n  heartbeat-interval: 100\n  listen-client-urls: http://0.0.0.0:2379\n  data-dir: /var/lib/etcd");
    flag_harmful: cluster("flags:\n  force-new-cluster: true\n  unsafe-no-fsync: true\n  strict-reconfig-check: false");
    flag_harmful_experimental: cluster("version: 3.5.34\nflags:\n  experimental-peer-skip-client-san-verification: true\n  peerautotls: true");
    flag_harmful_with_passwords: cluster("auth: { mode: password }\nflags:\n  enable-pprof: true");
    flag_name: cluster("flags:\n  --max-request-bytes: 10485760\n  max_txn_ops: 10");
    flag_experimental_gone: cluster("version: 3.7.2\nflags:\n  experimental-corrupt-check-time: 3600000000000");
    flag_experimental_old: cluster("flags:\n  experimental-corrupt-check-time: 3600000000000");
    flag_no_effect: cluster("flags:\n  client-crl-file: revoked.pem");
    flag_set_by_raftsman: cluster("flags:\n  feature-gates: CompactHashCheck=false\n  log-outputs: stdout\n  strict-reconfig-check: true");
    flag_type: cluster("flags:\n  corrupt-check-time: 60m\n  max-request-bytes: \"10485760\"\n  pre-vote: \"on\"\n  cipher-suites: TLS_AES_128_GCM_SHA256");
    flag_unknown: cluster("flags:\n  max-request-byte: 10485760\n  colour: blue");
    flag_of_later_line: cluster("version: 3.5.34\nflags:\n  max-learners: 2");
}

// Roles and users.
cases! {
    role_unknown: cluster("roles:\n  app-reader:\n    - { read: { prefix: /app/ } }\nusers:\n  app: { roles: [app-raeder] }\n  web: { roles: [billing] }");
    role_unknown_without_roles: cluster("users:\n  app: { roles: [app-reader] }");
    role_twice: cluster("roles:\n  a: [{ read: { prefix: /a/ } }]\nusers:\n  app: { roles: [a, a] }");
    root_listed: cluster("roles:\n  root: []\nusers:\n  root: { roles: [root] }");
    user_is_superuser: cluster("users:\n  alice: { roles: [root] }");
    user_without_password: cluster("auth: { mode: password }\nroles:\n  a: [{ read: { prefix: /a/ } }]\nusers:\n  app: { roles: [a] }\n  web:");
    user_password_beside_certificate: cluster("roles:\n  a: [{ read: { prefix: /a/ } }]\nusers:\n  app: { roles: [a], password: { file: app.password } }");
    user_password_inline: cluster("auth: { mode: password }\nusers:\n  app: { password: hunter2 }");
    user_password_variable: cluster("auth: { mode: password }\nusers:\n  app: { password: { env: $hunter2 } }");
    access_names: cluster("roles:\n  \"a b\": []\nusers:\n  \"\": {}");
    permission_everything: cluster("roles:\n  all:\n    - { read: { prefix: \"\" } }\n  most:\n    - { readwrite: { from: \"\" } }");
    permission_range_backwards: cluster("roles:\n  a:\n    - { read: { range: [/b, /a] } }\n    - { read: { range: [/c, /c] } }\n    - { read: { range: [\"\", /c] } }");
    permission_range_of_three: cluster("roles:\n  a:\n    - { read: { range: [/a, /b, /c] } }\n    - { read: { range: /a } }");
    permission_key_empty: cluster("roles:\n  a:\n    - { write: { key: \"\" } }");
    permission_twice: cluster("roles:\n  a:\n    - { read: { prefix: /app/ } }\n    - { write: { prefix: /app/ } }\n    - { write: { range: [/app/, /app0] } }");
    permission_unknown: cluster("roles:\n  a:\n    - { reed: { prefix: /app/ } }\n    - { read: { prefx: /app/ } }\n    - { read: /app/ }\n    - read");
    permission_two_levels: cluster("roles:\n  a:\n    - { read: { prefix: /app/ }, write: { prefix: /app/ } }");
}

// Many at once.
cases! {
    many_errors: whole("fleet: Shop\nstat: x\nmachines:\n  provider: locl\n  memory: 8G\netcd:\n  main:\n    membres: 3\n    version: 3.6\n    timers: { heartbeat: 100, election: 1 s }\n    gateway: yes\n  b:\n    members:\n      - { name: b_1, address: 127.0.0.300 }\n      - { nam: b-2 }\n      - { name: b-3 }\n    quota: 0\n    v2_api: true\n  c:\n    members: 4\n    auth: { mode: certificate, root_password: hunter2 }\n    gateway: true\n    flags: { name: x }\n");
    no_errors_from_errors: cluster("version: three\nv2_api: true\ntimers: { heartbeat: 1s, election: slow }\nauto_compaction: { mode: periodc, retention: 1h }\nauth: { mode: pasword }\ngateway: true");
}

#[test]
fn json_has_place_code_and_words() {
    let reading = read("fleet: shop\netcd:\n  main:\n    members: 4\n");
    insta::assert_snapshot!(serde_json::to_string_pretty(&reading.diagnostics).unwrap_or_default(), @r#"
    [
      {
        "severity": "warning",
        "code": "members-even",
        "path": "etcd.main.members",
        "line": 4,
        "column": 14,
        "message": "4 members can lose 1, the same as 3",
        "why": "the additional machine adds nothing but one more that can fail, and makes every write slower",
        "help": "use 3, or 5 to lose 2"
      }
    ]
    "#);
}

#[test]
fn a_long_list_of_errors_is_cut() {
    let clusters: String = (1..=60).map(|n| format!("  c{n}: {{ members: 0 }}\n")).collect();
    let reading = read(&format!("fleet: shop\netcd:\n{clusters}"));
    assert_eq!(reading.errors(), 51);
    assert_eq!(reading.diagnostics.last().map(|last| last.code), Some("and-more"));
}

#[test]
fn no_secret_is_ever_shown() {
    let shapes = [
        "root_password: hunter2",
        "root_password: \"hunter2\"",
        "root_password: [hunter2, hunter2]",
        "root_password: {hunter2: hunter2}",
        "root_password: {file: [hunter2]}",
        "root_password: !x hunter2",
        "root_password: &a hunter2",
        "root_password: {file: x, value: hunter2}",
        "root_password: |\n  hunter2",
        "root_password: >\n  hunter2\n  hunter2",
        "root_password: hunter2: hunter2",
        "root_password: {fil: hunter2",
        "root_password:\n  - hunter2\n  - hunter2",
        "rootpassword: hunter2",
        "password: hunter2",
        "Root_Password: hunter2",
        "root-password: hunter2",
        "root_password: \"hunter2",
        "root_password: 'hunter2' x",
        "root_password: {hunter2: 1, hunter2: 2}",
        "root_password: {env: \"hunter2!\"}",
        "root_password:\n  hunter2",
        "root_password: {value: {value: hunter2}}",
        "{root_password: hunter2",
        "root_password: *hunter2",
        "mode: x # root_password: hunter2",
        "mode: |\n  root_password: hunter2",
        "mode: \"root_password: hunter2\"",
        "mode: https://user:hunter2@example.com/",
        "mode: [http://hunter2@a, 'http://b:hunter2@c/d@e']",
        "root_password: http://user:hunter2@example.com",
        "mode: {a: \"http://user:hunter2@x\"",
    ];
    for shape in shapes {
        let text = cluster(&format!("auth:\n  {}", shape.replace('\n', "\n  ")));
        let reading = read(&text);
        let json = serde_json::to_string(&reading.diagnostics).unwrap_or_default();
        let shown = reading.render("raftsman.yaml", &text, true) + &json;
        assert!(!reading.diagnostics.is_empty(), "{shape}");
        assert!(!shown.contains("hunter2"), "{shape}:\n{shown}");
    }
}

// Backups.
cases! {
    backups_no_store: backups("prefix: a");
    backups_too_often: backups("store: { directory: /b }\nevery: 5s\nchanges_every: 10ms\ndrill_every: 1s");
    backups_no_schedule: backups("store: { directory: /b }\nchanges_every: 2s\ndrill_every: 1d\nkeep: { daily: 3 }");
    backups_no_changes: backups("store: { directory: /b }\nevery: 1h\nchanges_every: 2h");
    backups_drill_encrypted: backups(concat!(
        "store: { directory: /b }\nevery: 1h\ndrill_every: 1d\n",
        "encrypt_to: [age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p]"
    ));
    backups_bad_trust: backups("store: { directory: /b }\ntrust: [ed25519:xyz]\nprune: operator\nkeep: { last: 9 }");
    backups_unknown_store: backups("store: { s4: { bucket: b } }");
    backups_two_stores: backups("store: { directory: /srv/backups, s3: { bucket: b } }");
    backups_inline_secret: backups("store: { s3: { bucket: b, credentials: { id: AKIA123, secret: hunter2 } } }");
    backups_endpoint: backups("store: { s3: { bucket: b, endpoint: s3.example.com } }");
    backups_in_the_clear: backups("store: { s3: { bucket: b, endpoint: \"http://s3.example.com\" } }");
    backups_unused_ca: backups(concat!(
        "store: { s3: { bucket: b, endpoint: \"http://s3.example.com\", ca_cert: ca.pem } }\n",
        "encrypt_to: [age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p]",
    ));
    backups_names: backups("store: { s3: { bucket: a/b, region: \"\" } }\nprefix: a//../b c");
    backups_directory: backups("store: { directory: backups }");
    backups_recipient: backups("store: { directory: /srv/backups }\nencrypt_to: [age1short, alice@example.com]");
    backups_secret_key: backups("store: { directory: /srv/backups }\nencrypt_to: [AGE-SECRET-KEY-1QQQ]");
    backups_others: backups("store: { azure: { account: \"\", container: c, credentials: { env: \"$KEY\" } } }");
}

/// A warning that the file accepts is not shown; an error cannot be accepted.
#[test]
fn accepted_warnings_are_silent() {
    let file = |accepted: &str| format!("fleet: shop\n{accepted}etcd:\n  main: {{ members: 4, gateway: true }}\n");
    let codes = |text: &str| read(text).diagnostics.iter().map(|d| d.code).collect::<Vec<_>>();
    assert_eq!(codes(&file("")), ["members-even", "gateway-with-certificates"]);
    assert_eq!(codes(&file("accept_warnings: [members-even]\n")), ["gateway-with-certificates"]);
    assert!(codes(&file("accept_warnings: [gateway-with-certificates, members-even]\n")).is_empty());
    let wrong = "fleet: shop\naccept_warnings: [members-none]\netcd:\n  main: { members: 0 }\n";
    assert!(read(wrong).errors() > 0 && read(wrong).warnings() == 0, "an unused acceptance waits for the errors");
}

/// A file on libvirt with these lines under `machines`, and one cluster, `main`, with these.
fn on_kvm(machines: &str, main: &str) -> String {
    let indented = |lines: &str, by: &str| lines.lines().map(|line| format!("{by}{line}\n")).collect::<String>();
    format!(
        "fleet: shop\nmachines:\n  provider: libvirt\n  image: debian\n  subnet: 10.0.0.0/24\n  \
         install_dependencies: false\n{}etcd:\n  main:\n{}",
        indented(machines, "  "),
        indented(main, "    ")
    )
}

macro_rules! kvm_cases {
    ($($name:ident: $machines:expr, $main:expr;)*) => {
        $(#[test] fn $name() { snapshot(stringify!($name), &on_kvm($machines, $main)); })*
    };
}

const KVM: &str = "zones:
  kvm1: { libvirt: { uri: qemu+ssh://kvm1/system } }
  kvm2: { libvirt: { uri: qemu+ssh://kvm2/system } }
  kvm3: { libvirt: { uri: qemu+ssh://kvm3/system } }";

// What clusters and members say of their machines.
cases! {
    machines_provider_of_cluster: cluster("machines: { provider: incus }");
    machines_size_of_cluster: cluster("machines: { vcpus: 0, memory: 1MiB }");
    machines_size_of_member: members("- { name: a, machine: { disk: 1MiB } }\n- { name: b }\n- { name: c }");
}
kvm_cases! {
    machines_of_cluster: "", "members: 1\nmachines: { memory: 64MiB, image: '', libvirt: { network: a, macvtap: b }, incus: { network: c } }";
    machines_doors_of_cluster: "", "members: 1\nmachines: { firewall: { operators_from: [], metrics_from: [10.0.0.0/8] } }";
}

// Zones.
kvm_cases! {
    zones_one_host: "", "members: 3";
    zones_two_hosts: "zones:\n  kvm1: { libvirt: { uri: qemu+ssh://kvm1/system } }\n  kvm2: { libvirt: { uri: qemu+ssh://kvm2/system } }", "members: 5";
    zones_all_in_one: KVM, "members: 3\nmachines: { zones: [kvm2] }";
    zones_pinned: KVM, "members: [{ name: a, zone: kvm1 }, { name: b, zone: kvm1 }, { name: c }]";
    zones_unknown: KVM, "members: [{ name: a, zone: kvm4 }, { name: b }, { name: c }]\nmachines: { zones: [kvm1, kvm2, kvm2, kvm5] }";
    zones_unknown_without_zones: "", "members: [{ name: a, zone: kvm4 }, { name: b }, { name: c }]";
    zones_outside: KVM, "members: [{ name: a, zone: kvm3 }, { name: b }, { name: c }]\nmachines: { zones: [kvm1, kvm2] }";
    zones_empty: KVM, "members: 3\nmachines: { zones: [] }";
    zones_same: "zones:\n  a: { libvirt: { uri: qemu+ssh://kvm1/system } }\n  b: { libvirt: { uri: qemu+ssh://kvm1/system } }", "members: 3";
    zones_other_provider: "zones:\n  a: { incus: { server: /run/incus } }", "members: 1";
    zones_uri: "zones:\n  a: { libvirt: { uri: \"qemu+ext:///system?command=/bin/sh\", pool: -x } }", "members: 1";
}
cases! {
    zones_of_hosts: whole("fleet: shop\nmachines: { provider: hosts, zones: { rack-a: {}, rack-b: {}, rack-c: {} } }\netcd:\n  main:\n    members:\n    - { name: a, address: 10.0.0.1, zone: rack-a }\n    - { name: b, address: 10.0.0.2 }\n    - { name: c, address: 10.0.0.3, zone: rack-c }\n");
}

// Balancers.
cases! {
    balancers_as_list: whole("fleet: shop\netcd: { main: { members: 3 } }\nbalancers:\n  - etcd: main\n");
    balancer_missing_keys: balancers("front: { port: 2379 }");
    balancer_instances_shape: balancers("front: { etcd: main, instances: { lb1: 10.0.0.21 } }");
    balancer_instances_word: balancers("front: { etcd: main, instances: two }");
    balancer_cluster: balancers("front:\n  etcd: mian\n  instances: members\n  port: 12379");
    balancer_name: balancers("main: { etcd: main, instances: members, port: 12379 }");
    balancer_none: balancers("front: { etcd: main, instances: 0 }");
    balancer_single: whole(concat!(
        "fleet: shop\netcd: { main: { members: 3 } }\n",
        "balancers:\n  front:\n    etcd: main\n    instances: 1\n",
    ));
    balancer_many: whole(concat!(
        "fleet: shop\netcd: { main: { members: 3 } }\n",
        "balancers:\n  front:\n    etcd: main\n    instances: 12\n",
    ));
    balancer_nowhere: balancers("front:\n  etcd: main\n  instances: 2\nback:\n  etcd: main\n  instances:\n    - name: lb1\n    - { name: lb2, address: 10.0.0.22 }");
    balancer_no_subnet: whole(concat!(
        "fleet: shop\nmachines: { provider: libvirt, image: debian-13.qcow2 }\netcd:\n  main:\n    members:\n",
        "      - { name: db1, address: 10.0.0.11 }\n      - { name: db2, address: 10.0.0.12 }\n",
        "      - { name: db3, address: 10.0.0.13 }\nbalancers:\n  front: { etcd: main, instances: 2 }\n",
    ));
    balancer_taken: balancers(
        "front:\n  etcd: main\n  instances:\n    - { name: db1, address: 10.0.0.21 }\n    - { name: lb2, address: 10.0.0.12, host: -oProxyCommand=x }"
    );
    balancer_beside_port: balancers("front:\n  etcd: main\n  instances: members");
    balancer_beside_ports: balancers(
        "a: { etcd: main, instances: members, port: 2383 }\nb: { etcd: main, instances: members, port: 12379 }\nc: { etcd: main, instances: members, port: 12379 }"
    );
    balancer_ports: balancers(
        "a:\n  etcd: main\n  port: 443\n  instances: members\nb:\n  etcd: main\n  port: 2378\n  instances: members"
    );
    balancer_virtual_local: whole(concat!(
        "fleet: shop\netcd: { main: { members: 3 } }\n",
        "balancers:\n  front:\n    etcd: main\n    instances: 2\n    virtual_address: 10.0.0.100\n",
    ));
    balancer_virtual_single: balancers(
        "front:\n  etcd: main\n  virtual_address: 10.0.0.100\n  instances: [{ name: lb1, address: 10.0.0.21 }]"
    );
    balancer_virtual_taken: balancers("front:\n  etcd: main\n  instances: members\n  virtual_address: 10.0.0.12");
    balancer_virtual_outside: whole(concat!(
        "fleet: shop\nmachines:\n  provider: incus\n  incus: { network: lab }\n  subnet: 10.77.0.0/24\n",
        "etcd: { main: { members: 3 } }\n",
        "balancers:\n  front:\n    etcd: main\n    instances: 2\n    virtual_address: 10.78.0.100\n",
    ));
    balancer_virtual_family: balancers(
        "front:\n  etcd: main\n  virtual_address: fd00::99\n  instances:\n    - { name: lb1, address: 10.0.0.21 }\n    - { name: lb2, address: 10.0.0.22 }"
    );
    balancer_router_ids: balancers(
        "a: { etcd: main, instances: members, virtual_address: 10.0.0.100 }\nb: { etcd: main, instances: members, virtual_address: 10.0.1.100 }\nc: { etcd: main, instances: members, virtual_address: 10.0.1.101, vrrp: { router_id: 0, interface: eth0 up } }"
    );
    balancer_vrrp_unused: balancers("front:\n  etcd: main\n  instances: members\n  port: 12379\n  vrrp: { router_id: 7 }");
    balancer_names: balancers(
        "front:\n  etcd: main\n  instances: members\n  port: 12379\n  names: [https://etcd.example.com, 10.0.0.5, a.example.com, a.example.com]"
    );
    balancer_behind: whole("fleet: shop\netcd: { main: { members: 3, auth: { mode: password } } }\npostgres:\n  app: { etcd: main, nodes: 3 }\nbalancers:\n  none: { instances: 2 }\n  both: { etcd: main, postgres: app, instances: 2 }\n  typo: { postgres: ap, instances: 2 }\n  beside: { postgres: app, instances: members }\n  front: { etcd: main, instances: 2, replicas_port: 5433 }\n");
    balancer_replicas_ports: whole("fleet: shop\netcd: { main: { members: 3, auth: { mode: password } } }\npostgres:\n  app: { etcd: main, nodes: 3 }\nbalancers:\n  low: { postgres: app, instances: 2, replicas_port: 433 }\n  agents: { postgres: app, instances: 2, replicas_port: 2378 }\n  same: { postgres: app, instances: 2, port: 6432, replicas_port: 6432 }\n");
    balancer_access: whole("fleet: shop\netcd: { main: { members: 3, auth: { mode: password } } }\npostgres:\n  app:\n    etcd: main\n    nodes: 3\n    access:\n      - { databases: [shop], users: [shop], from: [10.0.0.0/8] }\n      - { databases: [all], users: [admin], from: [10.9.0.1] }\n  web:\n    etcd: main\n    nodes: 3\n    access:\n      - { databases: [shop], users: [shop], from: [10.0.0.0/8] }\n      - { databases: [all], users: [admin], from: [192.168.0.0/16] }\nbalancers:\n  some: { postgres: app, instances: 2 }\n  none: { postgres: web, instances: 2 }\n");
    balancer_limits: balancers(
        "front:\n  etcd: main\n  instances: members\n  port: 12379\n  max_connections: 0\n  timeouts: { connect: 0s, idle: 10m }"
    );
}

// PostgreSQL clusters.
cases! {
    postgres_later: nodes("version: 17.1\nroles: { app: { password: { file: p } } }\ndatabases: { app: { owner: app } }\nsuperuser: { password: { file: p } }");
    postgres_as_list: whole("fleet: shop\netcd: { main: { members: 3, auth: { mode: password } } }\npostgres:\n  - etcd: main\n");
    postgres_missing_keys: postgres("version: 17");
    postgres_unknown_keys: nodes("patroni: { master_start_timeout: 300, master_stop_timeout: 300, ttl: 30 }\naccess: [{ databases: [app], users: [app], from: [10.0.0.0/8], method: trust }]\nroles: { app: { superuser: true, password: { file: p } } }");
    postgres_nodes_shape: postgres("etcd: main\nnodes: { pg-1: 10.0.0.1 }");
    postgres_etcd_shape: postgres("etcd: [main]\nnodes: 3");
    postgres_versions_shape: nodes("version: 17.1.2\npatroni: { version: 4.1 }");
    postgres_inline_secret: nodes("superuser: { password: hunter2 }\nroles: { app: { password: hunter2 } }");
    postgres_etcd_unknown: postgres("etcd: mian\nnodes: 3");
    postgres_etcd_none: whole("fleet: shop\npostgres:\n  app: { etcd: main, nodes: 3 }\n");
    postgres_name_taken: whole("fleet: shop\netcd:\n  main: { members: 3, auth: { mode: password } }\npostgres:\n  main: { etcd: main, nodes: [{ name: a }, { name: b }, { name: c }] }\n");
    postgres_needs_gateway: whole("fleet: shop\netcd:\n  main:\n    members: 3\n    auth: { mode: password }\n    gateway: false\npostgres:\n  app: { etcd: main, nodes: 3 }\n");
    postgres_needs_password: whole("fleet: shop\netcd:\n  main: { members: 3 }\n  open: { members: 3, auth: { mode: none } }\npostgres:\n  app: { etcd: main, nodes: 3 }\n  web: { etcd: open, nodes: 3 }\n");
    postgres_etcd_version: whole("fleet: shop\netcd:\n  main:\n    members: 3\n    version: 3.5.20\n    source: { directory: versions }\n    auth: { mode: password }\npostgres:\n  app: { etcd: main, nodes: 3 }\n");
    postgres_external: postgres("etcd: { endpoints: [\"https://10.0.0.5\", \"10.0.0.6:2379\", \"10.0.0.6:2379\"], ca_cert: ~/ca.pem, username: root, password: { env: \"$P\" } }\nnodes: 3");
    postgres_external_empty: postgres("etcd: { endpoints: [], ca_cert: ca.pem, username: \"\", password: { file: p } }\nnodes: 3");
    postgres_same_prefix: whole("fleet: shop\netcd:\n  main:\n    members: 3\n    auth: { mode: password }\n    roles:\n      all-services: [{ readwrite: { prefix: /service/ } }]\n      readers: [{ read: { prefix: /service/ } }]\npostgres:\n  a: { etcd: main, nodes: 3 }\n  b: { etcd: main, nodes: 3, patroni: { scope: a } }\n  c: { etcd: main, nodes: 3, patroni: { namespace: /service/a/ } }\n");
    postgres_prefix_invalid: nodes("patroni: { scope: a/b, namespace: service }");
    postgres_few_nodes: postgres("etcd: main\nnodes: 2\nsynchronous: { nodes: 2 }");
    postgres_no_spare_node: postgres("etcd: main\nnodes: 2");
    postgres_few_candidates: postgres("etcd: main\nnodes: [{ name: a }, { name: b, tags: { nosync: true } }, { name: c, tags: { failover_priority: 0 } }]");
    postgres_no_nodes: postgres("etcd: main\nnodes: 0\nsynchronous: { nodes: 0 }");
    postgres_many_nodes: postgres("etcd: main\nnodes: 12");
    postgres_no_primary: postgres("etcd: main\nsynchronous: { mode: off }\nnodes: [{ name: a, tags: { nofailover: true } }, { name: b, tags: { nofailover: true } }]");
    postgres_can_lose: nodes("synchronous: { mode: preferred }");
    postgres_timing_minimums: nodes("patroni: { ttl: 10, loop_wait: 0, retry_timeout: 1 }");
    postgres_timing_ttl: nodes("patroni: { ttl: 25, loop_wait: 10, retry_timeout: 10 }");
    postgres_timing_watchdog: nodes("patroni: { ttl: 40, loop_wait: 20, retry_timeout: 10 }\nwatchdog: { safety_margin: -1 }");
    postgres_timing_margin: nodes("watchdog: { safety_margin: -5 }");
    postgres_timing_unwise: whole("fleet: shop\nmachines: { zones: { a: {}, b: {} } }\netcd:\n  main:\n    members: 3\n    auth: { mode: password }\n    timers: { heartbeat: 200ms, election: 2s }\npostgres:\n  app: { etcd: main, nodes: 3, patroni: { ttl: 20, loop_wait: 1, retry_timeout: 3 } }\n  web: { etcd: main, nodes: 3, failsafe: false }\n");
    postgres_parameters_owned: nodes("parameters: { listen_addresses: \"*\", port: 5433, ssl_ciphers: ALL, synchronous_standby_names: \"*\", recovery_target_time: now }");
    postgres_parameters_run: nodes("parameters:\n  archive_cleanup_command: rm -rf /\n  archive_library: evil\n  shared_preload_libraries: pg_stat_statement, evil\n  include: /etc/passwd\n  log_directory: /tmp");
    postgres_parameters_unsafe: nodes("parameters: { fsync: off, full_page_writes: f, zero_damaged_pages: true, synchronous_commit: local }\nroles: { app: { password: { file: p }, settings: { synchronous_commit: off } } }");
    postgres_parameters_named: nodes("parameters: { FSYNC: off, \"a b\": 1, work_mem: \"4MB\\nfsync = off\", temp_buffers: [1, 2] }");
    postgres_roles: nodes("roles:\n  postgres: { password: { file: p } }\n  pg_admin: { login: false }\n  app: {}\n  cdc: { password: { file: p }, replication: true, member_of: [ap, cdc, pg_execute_server_program, pg_monitor] }\n  \"App Two\": { login: false }");
    postgres_roles_in_a_circle: nodes("version: 15\nroles:\n  a: { login: false, member_of: [b] }\n  b: { login: false, member_of: [c] }\n  c: { login: false, member_of: [a] }\n  d: { login: false, member_of: [a], createrole: true }");
    postgres_databases: nodes("roles: { app: { password: { file: p } } }\ndatabases:\n  postgres: { owner: postgres }\n  shop: { owner: ap, encoding: \"U 8\", extensions: [\"a;b\"] }");
    postgres_access: nodes("roles: { app: { password: { file: p } } }\naccess:\n  - { databases: [replication], users: [replicator], from: [] }\n  - { databases: [\"@/etc/passwd\", all], users: [\"+admins\", all, ap], from: [10.0.0.1/8] }");
    postgres_watchdog_local: nodes("watchdog: { mode: required, device: /tmp/x }");
    postgres_watchdog_container: whole("fleet: shop\nmachines:\n  provider: incus\n  image: debian\n  incus: { network: lab }\netcd:\n  main: { members: 3, auth: { mode: password } }\npostgres:\n  app:\n    etcd: main\n    nodes: 3\n    watchdog: { mode: required }\n  web:\n    etcd: main\n    nodes: 3\n    machines: { incus: { type: virtual-machine } }\n    watchdog: { mode: required }\n");
    postgres_versions: nodes("version: 12\npatroni: { version: 4.0.7 }");
    postgres_sources: nodes("version: 17\nsource: { archive: { url: \"http://example.com/pg.tar\", sha256: 00 } }\npatroni: { source: { bundle: { file: patroni.tar, sha256: { 4.1.4: 00, 4.1.6: 00 } } } }");
    postgres_package: nodes("source: { package: PostgreSQL 17 }\npatroni: { source: { bundle: { sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef } } }");
    postgres_backups: nodes("backups: { full_every: 1d, diff_every: 1w, drill_every: 1s, keep_full: 0 }\nrestore_from: { at: \"\", backup: ../x }");
    postgres_certificates: nodes("certificates: { extra_names: [10.0.0.1], validity: 100y, renew_before: 1y }\nca: { brought: { certificate: ca.pem, key: { file: ca.pem } } }");
    postgres_ca_shared: whole("fleet: shop\netcd:\n  main:\n    members: 3\n    auth: { mode: password }\n    ca: { clients: { brought: { certificate: a.pem, key: { file: a.key } } } }\npostgres:\n  app: { etcd: main, nodes: 3, ca: { brought: { certificate: a.pem, key: { file: a.key } } } }\n  b: { etcd: main, nodes: 3, ca: { brought: { certificate: b.pem, key: { file: b.key } } } }\n  c: { etcd: main, nodes: 3, ca: { brought: { certificate: c.pem, key: { file: b.key } } } }\n");
    postgres_beside: whole("fleet: shop\nmachines: { provider: hosts }\netcd:\n  main:\n    auth: { mode: password }\n    members: [{ name: a, address: 10.0.0.1 }, { name: b, address: 10.0.0.2 }, { name: c, address: 10.0.0.3 }]\npostgres:\n  app:\n    etcd: main\n    nodes:\n      - { name: a, address: 10.0.0.11 }\n      - { name: p2, address: 10.0.0.2, host: -oProxyCommand=x }\n      - { name: lb1, address: 10.0.0.13 }\n      - { name: p4, address: 10.0.0.14, patroni_name: p5 }\n      - { name: p5, address: 10.0.0.14 }\n      - { name: p5 }\nbalancers:\n  front: { etcd: main, instances: [{ name: lb1, address: 10.0.0.21 }, { name: lb2, address: 10.0.0.22 }] }\n");
    postgres_none: machines("provider: incus\nimage: debian\nincus: { network: lab }\nfirewall: { postgres_from: [10.0.0.0/8], rest_from: [] }\nlogs: { patroni_tag: pg, buffer: { mem_limit: 5MiB }, forward: { host: logs.example.com, shared_key: { file: k }, ca_cert: ca.pem } }");
    postgres_logs_of_cluster: whole("fleet: shop\nmachines:\n  provider: incus\n  image: debian\n  incus: { network: lab }\n  logs: { forward: { host: logs.example.com, shared_key: { file: k }, ca_cert: ca.pem } }\netcd:\n  main: { members: 3, auth: { mode: password }, machines: { logs: { etcd_tag: e } } }\npostgres:\n  app: { etcd: main, nodes: 3, machines: { logs: { patroni_tag: \"a b\" } } }\n");
    postgres_zones_and_machines: whole("fleet: shop\nmachines: { provider: hosts, zones: { rack-a: {}, rack-b: {} } }\netcd:\n  main:\n    auth: { mode: password }\n    members: [{ name: a, address: 10.0.0.1, zone: rack-a }]\npostgres:\n  app:\n    etcd: main\n    machines: { zones: [] }\n    nodes:\n      - { name: p1, address: 10.0.0.11, zone: rack-c }\n      - { name: p2, zone: rack-b }\n      - { name: p3, address: 10.0.0.13, machine: { memory: 1MiB } }\n");
}

/// The table of write pauses is there beside the refusal, and not where the timers could not be read or are unsafe.
#[test]
fn the_table_of_write_pauses_is_there_beside_errors() {
    let clusters = |text: &str| read(text).timings.keys().map(ToString::to_string).collect::<Vec<_>>();
    let codes = |text: &str| read(text).diagnostics.iter().map(|d| d.code).collect::<Vec<_>>();
    assert_eq!((codes(&nodes("")), clusters(&nodes(""))), (Vec::<&str>::new(), vec!["app".to_owned()]));
    assert!(
        clusters(&nodes("patroni: { ttl: fast }")).is_empty() && clusters(&nodes("patroni: { ttl: 1 }")).is_empty()
    );
    let external =
        "etcd: { endpoints: [\"10.0.0.5:2379\"], ca_cert: ca.pem, username: p, password: { file: p } }\nnodes: 3";
    let reading = read(&postgres(external));
    assert!(reading.timings["app"].election_assumed && reading.spec.is_none());
    // What is wrong elsewhere comes first, and does not hide the refusal.
    let wrong = nodes("synchronous: { mode: off }\nsuperuser: { password: { file: p } }");
    let wrong = format!("{wrong}balancers: {{ front: {{ etcd: mian, instances: 2 }} }}\n");
    assert_eq!(codes(&wrong), ["postgres-can-lose", "balancer-without-cluster", "postgres-later"]);
}
