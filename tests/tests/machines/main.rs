//! Hosts with systemd, Incus and libvirt → clusters on them, and nothing is left of them.

mod balancer_agent;
mod balancer_on_hosts;
mod balancer_on_incus;
mod conformance;
mod first_boot;
mod hosts;
mod images;
mod incus;
mod libvirt;
mod on_hosts;
mod on_incus;
mod on_libvirt;
mod postgres;
