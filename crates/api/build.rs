//! `proto/**/*.proto` → Rust code in `OUT_DIR`, without the `protoc` program.

use std::error::Error;

const PROTO: &str = "raftsman/agent/v1/agent.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
