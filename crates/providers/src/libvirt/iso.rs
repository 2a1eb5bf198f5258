//! a label, files → the bytes of a CD (ISO 9660 with Joliet) with these files in its root: the seed disk of cloud-init.
//!
//! Implemented here because it is small: no directories, a handful of files, nothing that depends on the time. Programs
//! that make such disks are not on every operator's computer.

const SECTOR: usize = 2048;
/// Where the descriptors begin; the sectors before are for boot loaders.
const DESCRIPTORS: usize = 16;
const PATHS: usize = DESCRIPTORS + 3;
const ROOT: usize = PATHS + 4;
const FILES: usize = ROOT + 2;
/// The one entry of a table of paths: the root.
const PATHS_LENGTH: usize = 10;

/// Which of the two trees: both name the same files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tree {
    /// ISO 9660 names: Linux shows them in lower case.
    Plain,
    /// Names in UCS-2.
    Joliet,
}

/// A file on the CD: its name, and what is in it.
pub(super) type Entry<'a> = (&'a str, &'a [u8]);

/// The CD. Names are of lower-case letters and hyphens; a root of one sector has room for twenty.
pub(super) fn image(label: &str, files: &[Entry<'_>]) -> Vec<u8> {
    let mut files = files.to_vec();
    files.sort_unstable_by_key(|(name, _)| *name);
    let mut places = Vec::with_capacity(files.len());
    let mut end = FILES;
    for (_, contents) in &files {
        places.push(end);
        end += contents.len().div_ceil(SECTOR).max(1);
    }
    let mut image = vec![0; end * SECTOR];
    let mut put = |sector: usize, bytes: &[u8]| {
        let at = sector * SECTOR;
        image[at..at + bytes.len()].copy_from_slice(bytes);
    };
    for (tree, offset) in [(Tree::Plain, 0), (Tree::Joliet, 1)] {
        put(DESCRIPTORS + offset, &descriptor(tree, label, end, PATHS + 2 * offset, ROOT + offset));
        put(PATHS + 2 * offset, &paths(number(ROOT + offset).to_le_bytes(), 1u16.to_le_bytes()));
        put(PATHS + 2 * offset + 1, &paths(number(ROOT + offset).to_be_bytes(), 1u16.to_be_bytes()));
        let mut root = record(&[0], ROOT + offset, SECTOR, true);
        root.extend(record(&[1], ROOT + offset, SECTOR, true));
        for ((name, contents), place) in files.iter().zip(&places) {
            root.extend(record(&tree.name(name), *place, contents.len(), false));
        }
        put(ROOT + offset, &root);
    }
    put(DESCRIPTORS + 2, b"\xffCD001\x01");
    for ((_, contents), place) in files.iter().zip(&places) {
        put(*place, contents);
    }
    image
}

impl Tree {
    fn name(self, name: &str) -> Vec<u8> {
        match self {
            Self::Plain => format!("{}.;1", name.to_ascii_uppercase()).into_bytes(),
            Self::Joliet => name.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        }
    }

    /// A text of a descriptor, filled up with blanks.
    fn text(self, text: &str, length: usize) -> Vec<u8> {
        match self {
            Self::Plain => text.bytes().chain(std::iter::repeat(b' ')).take(length).collect(),
            Self::Joliet => {
                let padded = text.encode_utf16().chain(std::iter::repeat(u16::from(b' ')));
                padded.flat_map(u16::to_be_bytes).take(length).collect()
            }
        }
    }
}

/// Sizes and places fit: an image is far below 4 GiB.
fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// In both byte orders, as almost everywhere here.
fn both(value: usize) -> Vec<u8> {
    [number(value).to_le_bytes(), number(value).to_be_bytes()].concat()
}

fn both_short(value: u16) -> Vec<u8> {
    [value.to_le_bytes(), value.to_be_bytes()].concat()
}

fn record(name: &[u8], sector: usize, length: usize, directory: bool) -> Vec<u8> {
    let mut record = vec![0, 0];
    record.extend(both(sector));
    record.extend(both(length));
    // 2000-01-01: the same input gives the same image.
    record.extend([100, 1, 1, 0, 0, 0, 0]);
    record.extend([if directory { 2 } else { 0 }, 0, 0]);
    record.extend(both_short(1));
    record.push(name.len() as u8);
    record.extend(name);
    if record.len() % 2 == 1 {
        record.push(0);
    }
    record[0] = record.len() as u8;
    record
}

fn paths(root: [u8; 4], parent: [u8; 2]) -> Vec<u8> {
    [&[1, 0][..], &root, &parent, &[0, 0]].concat()
}

fn descriptor(tree: Tree, label: &str, sectors: usize, paths: usize, root: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(SECTOR);
    out.extend([if tree == Tree::Plain { 1 } else { 2 }]);
    out.extend(b"CD001\x01\0");
    out.extend(tree.text("", 32));
    out.extend(tree.text(label, 32));
    out.extend([0; 8]);
    out.extend(both(sectors));
    let escapes: &[u8] = if tree == Tree::Joliet { b"%/E" } else { b"" };
    out.extend(escapes.iter().copied().chain(std::iter::repeat(0)).take(32));
    out.extend(both_short(1));
    out.extend(both_short(1));
    out.extend(both_short(SECTOR as u16));
    out.extend(both(PATHS_LENGTH));
    out.extend(number(paths).to_le_bytes());
    out.extend([0; 4]);
    out.extend(number(paths + 1).to_be_bytes());
    out.extend([0; 4]);
    out.extend(record(&[0], root, SECTOR, true));
    // Volume set, publisher, preparer, application; copyright, abstract and bibliography files: none.
    for length in [128, 128, 128, 128, 37, 37, 37] {
        out.extend(tree.text("", length));
    }
    // Created, changed, expires, valid from: not set.
    for _ in 0..4 {
        out.extend([b'0'; 16]);
        out.push(0);
    }
    out.push(1);
    out
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What blkid reads. The virtual machines of the tests boot with it, which shows that the kernel reads its files:
    /// not every computer can mount a CD.
    #[test]
    fn a_cd_is_known_by_its_label() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("seed.iso");
        let agent: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        let files: [Entry<'_>; 4] = [
            ("user-data", b"#cloud-config\n"),
            ("meta-data", b"a: b\n"),
            ("network-config", b""),
            ("raftsman-agent", &agent),
        ];
        let image = image("cidata", &files);
        // Every file begins at a sector of its own, by name.
        let at = |sector: usize| &image[sector * SECTOR..];
        assert!(at(FILES).starts_with(b"a: b\n") && at(FILES + 2).starts_with(&agent));
        assert!(at(FILES + 2 + agent.len().div_ceil(SECTOR)).starts_with(b"#cloud-config\n"));
        std::fs::write(&path, &image).expect("a file");
        let output = Command::new("/usr/sbin/blkid").args(["-p", "-o", "export"]).arg(&path).output().expect("blkid");
        let found = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(found.contains("LABEL=cidata\n") && found.contains("TYPE=iso9660\n"), "{found}");
    }
}
