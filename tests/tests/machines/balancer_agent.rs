//! Debian's HAProxy and keepalived on hosts with systemd → units that the agent starts, reloads and stops.

use std::path::Path;

use raftsman_api::fence;
use raftsman_api::roles::Role;
use raftsman_api::tls::{ClientTls, Identity, connect};
use raftsman_api::v1::agent_client::AgentClient;
use raftsman_api::v1::{self, Program};
use raftsman_core::render::haproxy::{self, Backend, Haproxy};
use raftsman_core::render::keepalived::{self, Keepalived};
use raftsman_core::spec::Name;
use raftsman_engine::pki::{Authority, AuthorityKind};
use raftsman_engine::store::{IdentitySource, Store};
use raftsman_tests::hosts::Hosts;
use raftsman_tests::lab::{Lab, etcd_dir, eventually};
use secrecy::ExposeSecret as _;
use tonic::transport::Channel;

struct Caller {
    client: AgentClient<Channel>,
    generation: u64,
}

impl Caller {
    async fn new(lab: &Lab, machine: &str, address: std::net::Ipv4Addr) -> Self {
        let store = Store::open(&lab.path().join(".raftsman"), "lab").await.expect("the state");
        let secrets = store.unlock(IdentitySource::State(None)).await.expect("the secrets");
        let key = secrets.get("fleet").await.expect("readable").expect("a key");
        let certificate = store.get_certificate("fleet").await.expect("readable").expect("a certificate");
        let ours = Authority::load(AuthorityKind::Fleet, &certificate, &key).expect("an authority");
        let hour = std::time::Duration::from_secs(3600);
        let role = Some(Role::Operator.organization());
        let (chain, key) = ours.issue_client("test", role, hour, jiff::Timestamp::now()).expect("a certificate");
        let identity = Identity::from_pem(&chain, key.expose_secret()).expect("an identity");
        let id = lab.fleet_id().expect("an id");
        let tls = ClientTls::claimed(&identity, ours.certificate_pem(), machine, &id).expect("TLS");
        let at = (address, 2378).into();
        let client = AgentClient::new(connect(at, &tls).await.expect("a connection").channel);
        let text = std::fs::read_to_string(lab.path().join(".raftsman/generation")).expect("it");
        Self { client, generation: text.trim().parse().expect("a number") }
    }
    fn stamp<T>(&self, message: T) -> tonic::Request<T> {
        fence::stamp(tonic::Request::new(message), self.generation)
    }
    async fn configure(&mut self, program: Program, config: String) {
        self.try_configure(program, config).await.expect("configured");
    }
    async fn try_configure(&mut self, program: Program, config: String) -> Result<(), tonic::Status> {
        let digest = raftsman_api::hex::sha256(config.as_bytes());
        let request = self.stamp(v1::ConfigureProgramRequest { program: program.into(), config, digest });
        self.client.configure_program(request).await.map(drop)
    }
    async fn start(&mut self, program: Program) -> Result<u32, tonic::Status> {
        let request = self.stamp(v1::StartProgramRequest { program: program.into(), ..Default::default() });
        Ok(self.client.start_program(request).await?.into_inner().pid)
    }
    async fn reload(&mut self, program: Program) -> Result<(), tonic::Status> {
        let request = self.stamp(v1::ReloadProgramRequest { program: program.into() });
        self.client.reload_program(request).await.map(drop)
    }
    async fn stop(&mut self, program: Program) {
        let request = self.stamp(v1::StopProgramRequest { program: program.into(), ..Default::default() });
        self.client.stop_program(request).await.expect("stopped");
    }
    async fn report(&mut self) -> v1::ReportReply {
        self.client.report(v1::ReportRequest::default()).await.expect("a report").into_inner()
    }
    async fn set(&mut self, admin: v1::ServerAdmin) -> Result<(), tonic::Status> {
        let request = self.stamp(v1::SetServerRequest { member: "db1".to_owned(), admin: admin.into() });
        self.client.set_server(request).await.map(drop)
    }
}

fn config(own: std::net::Ipv4Addr, members: &[std::net::Ipv4Addr], connections: u32) -> String {
    let backends: Vec<Backend> = members
        .iter()
        .enumerate()
        .map(|(i, address)| Backend {
            name: Name::parse(&format!("db{}", i + 1)).expect("a name"),
            client: (*address, 2379).into(),
            health: (*address, 2383).into(),
        })
        .collect();
    haproxy::config(&Haproxy {
        address: Some(own.into()),
        virtual_address: Some([10, 77, 0, 200].into()),
        port: 2399,
        servers: haproxy::Servers::Members(&backends),
        max_connections: connections,
        connect_ms: 1000,
        idle_ms: 60_000,
    })
}

#[test]
fn haproxy_and_keepalived_are_units_of_the_agent() {
    let mut hosts = Hosts::up(2);
    let addresses = hosts.addresses();
    for i in 0..2 {
        hosts.install(i, haproxy::PROGRAM);
        hosts.install(i, keepalived::PROGRAM);
    }
    let before: Vec<_> = (0..2).map(|i| hosts.manifest(i)).collect();
    let ssh = hosts.ssh_config();
    let ssh: &Path = &ssh;
    let lab = Lab::new(&format!(
        "fleet: lab\nmachines:\n  provider: hosts\n  ssh: {{ config: {ssh:?} }}\netcd:\n  main:\n    version: 3.6.15\n    \
         source: {{ directory: {:?} }}\n    members:\n      - {{ name: db1, address: {} }}\n      - {{ name: db2, address: {} }}\n",
        etcd_dir(),
        addresses[0],
        addresses[1]
    ));
    lab.apply();
    // As where the agent was upgraded from one that did not know these programs.
    let older = "userdel raftsman-haproxy; rm -r /var/lib/raftsman/haproxy /etc/systemd/system/raftsman-haproxy.service \
                 /etc/systemd/system/raftsman-keepalived.service; systemctl daemon-reload; systemctl restart raftsman-agent";
    hosts.console(1, older).ok();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let has =
        |hosts: &Hosts, i: usize| hosts.console(i, "ip -br address show eth0").ok().stdout.contains("10.77.0.200/");
    let mut callers = Vec::new();
    for i in 0..2 {
        let mut caller = runtime.block_on(Caller::new(&lab, &format!("db{}", i + 1), addresses[i]));
        runtime.block_on(async {
            caller.configure(Program::Haproxy, config(addresses[i], &addresses, 100)).await;
            let (name, instance) = (Name::parse("front").expect("it"), Name::parse(&format!("front-{i}")).expect("it"));
            let text = keepalived::config(&Keepalived {
                balancer: &name,
                instance: &instance,
                interface: None,
                router_id: 7,
                priority: if i == 0 { 200 } else { 100 },
                address: addresses[i].into(),
                peers: &[addresses[1 - i].into()],
                virtual_address: [10, 77, 0, 200].into(),
            });
            caller.configure(Program::Keepalived, text).await;
            let refused = caller.start(Program::Keepalived).await.expect_err("refused");
            assert!(refused.message().contains("HAProxy is not running: start it first"), "{refused}");
            caller.start(Program::Haproxy).await.expect("HAProxy starts");
            assert_eq!(caller.report().await.balancer.expect("HAProxy runs").problem, "");
            caller.start(Program::Keepalived).await.expect("keepalived starts");
        });
        callers.push(caller);
        let user = hosts.console(i, "ps -o user:32= -p $(systemctl show -P MainPID raftsman-haproxy)").ok().stdout;
        assert_eq!(user.trim(), "raftsman-haproxy");
        if i == 0 {
            eventually("the first has the address", || has(&hosts, 0).then_some(()));
        }
    }
    assert!(!has(&hosts, 1));
    runtime.block_on(async {
        assert!(callers[0].report().await.balancer.expect("it").has_virtual_address);
        assert!(!callers[1].report().await.balancer.expect("it").has_virtual_address);
        // No member has the listener that HAProxy asks for its health: none can be drained.
        let refused = callers[0].set(v1::ServerAdmin::Drain).await.expect_err("refused");
        assert!(refused.message().contains("is not drained"), "{refused}");
        callers[0].configure(Program::Haproxy, config(addresses[0], &addresses, 99)).await;
        callers[0].reload(Program::Haproxy).await.expect("reloaded");
        callers[0].reload(Program::Keepalived).await.expect("reloaded");
        for program in callers[0].report().await.programs {
            assert_eq!(program.config_digest, program.running_config_digest, "{program:?}");
        }
        // Lines that raftsman does not write are not taken; a file of its lines that HAProxy refuses is not taken up.
        let refused = callers[0].try_configure(Program::Haproxy, "nonsense\n".to_owned()).await.expect_err("refused");
        assert!(refused.message().contains("is none that raftsman writes"), "{refused}");
        let twice = config(addresses[0], &[addresses.as_slice(), &addresses].concat(), 99).replace("db3", "db1");
        callers[0].configure(Program::Haproxy, twice).await;
        let refused = callers[0].reload(Program::Haproxy).await.expect_err("refused");
        assert!(refused.message().contains("another server named 'db1'"), "{refused}");
        callers[0].configure(Program::Haproxy, config(addresses[0], &addresses, 99)).await;
    });
    // HAProxy ends: keepalived with it, and the address goes to the other.
    let begun = std::time::Instant::now();
    hosts.console(0, "systemctl kill -s KILL raftsman-haproxy").ok();
    eventually("the other has the address", || (has(&hosts, 1) && !has(&hosts, 0)).then_some(()));
    println!("the address moved after {:?}", begun.elapsed());
    let both = "systemctl is-active raftsman-haproxy raftsman-keepalived";
    eventually("both are back", || (hosts.console(0, both).stdout == "active\nactive\n").then_some(()));
    assert!(has(&hosts, 1) && !has(&hosts, 0), "it does not move back");
    // An agent that is started again adopts both; a stop of HAProxy is not undone by keepalived.
    let pids =
        |hosts: &Hosts| hosts.console(0, "systemctl show -P MainPID raftsman-haproxy raftsman-keepalived").ok().stdout;
    let running = pids(&hosts);
    hosts.console(0, "systemctl restart raftsman-agent").ok();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(pids(&hosts), running);
    let mut caller = runtime.block_on(Caller::new(&lab, "db1", addresses[0]));
    runtime.block_on(caller.stop(Program::Haproxy));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(hosts.console(0, both).stdout, "inactive\ninactive\n");
    // The address is at the second host, over a power cut of it too.
    hosts.power_cut(1);
    hosts.start(1);
    eventually("both are back", || (hosts.console(1, both).stdout == "active\nactive\n").then_some(()));
    eventually("it has the address", || has(&hosts, 1).then_some(()));
    drop((caller, callers));
    lab.run(&["destroy", "--yes"]).ok();
    for (i, before) in before.iter().enumerate() {
        assert_eq!(hosts.left(i, before), Vec::<String>::new(), "left on host {i}");
    }
}
