//! A secret's reference (a file, an environment variable) → the secret; and new secrets.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use raftsman_core::spec::Secret;
use secrecy::SecretString;
use zeroize::{Zeroize, Zeroizing};

/// A larger file is not a secret but a wrong path.
const LARGEST: u64 = 1024 * 1024;

/// Why a secret cannot be read. The value is never part of it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file is not there.
    #[error("the secret file {path} does not exist; write the secret into it: (umask 077; cat > {path})", path = path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Every user of this computer can read it.
    #[error("the secret file {path} can be read by every user (mode {mode:04o}); close it: chmod 600 {path}", path = path.display())]
    WorldReadable {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// There is nothing in it.
    #[error("the secret file {path} is empty; write the secret into it", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It is far too large.
    #[error("the secret file {path} is larger than 1 MiB; is it the right file?", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not text.
    #[error("the secret file {path} is not UTF-8 text; for binary secrets, write their base64 form into it", path = path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("the secret file {path} cannot be read: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The variable is not set.
    #[error(
        "the environment variable {name} is not set; set it for the command, without writing the value into the shell's history: read -rs {name} && export {name}"
    )]
    Unset {
        /// The variable.
        name: String,
    },
    /// The variable is empty.
    #[error("the environment variable {name} is empty; set it to the secret")]
    EmptyVariable {
        /// The variable.
        name: String,
    },
    /// The variable is not text.
    #[error("the environment variable {name} is not UTF-8 text")]
    VariableNotText {
        /// The variable.
        name: String,
    },
    /// No random numbers.
    #[error("the system gives no random numbers; nothing secret can be made on this computer")]
    Random,
}

/// Reads a secret. Files are relative to `base_dir`, the directory of the file that refers to them.
pub fn resolve(secret: &Secret, base_dir: &Path) -> Result<SecretString, SecretError> {
    match secret {
        Secret::File(path) => from_file(base_dir.join(path)),
        Secret::Env(name) => from_variable(name, std::env::var_os(name)),
    }
}

fn from_file(path: PathBuf) -> Result<SecretString, SecretError> {
    let file = match fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(SecretError::Missing { path }),
        Err(source) => return Err(SecretError::Unreadable { path, source }),
    };
    // Checked on the open file, so that the file that is checked is the one that is read.
    let mode = match file.metadata() {
        Ok(metadata) => metadata.permissions().mode() & 0o7777,
        Err(source) => return Err(SecretError::Unreadable { path, source }),
    };
    if mode & 0o007 != 0 {
        return Err(SecretError::WorldReadable { path, mode });
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(4096));
    if let Err(source) = file.take(LARGEST + 1).read_to_end(&mut bytes) {
        return Err(SecretError::Unreadable { path, source });
    }
    if bytes.len() as u64 > LARGEST {
        return Err(SecretError::TooLarge { path });
    }
    let Ok(text) = std::str::from_utf8(&bytes) else { return Err(SecretError::NotText { path }) };
    // Editors and echo end the file with a line break that is not part of the secret.
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(SecretError::Empty { path });
    }
    Ok(SecretString::from(text))
}

fn from_variable(name: &str, value: Option<OsString>) -> Result<SecretString, SecretError> {
    let name = name.to_owned();
    let Some(value) = value else { return Err(SecretError::Unset { name }) };
    if value.is_empty() {
        return Err(SecretError::EmptyVariable { name });
    }
    match value.into_string() {
        Ok(text) => Ok(SecretString::from(text)),
        Err(other) => {
            other.into_encoded_bytes().zeroize();
            Err(SecretError::VariableNotText { name })
        }
    }
}

/// A password of 32 characters that need no quoting anywhere: 192 random bits.
pub fn random_password() -> Result<SecretString, SecretError> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = Zeroizing::new([0; 32]);
    aws_lc_rs::rand::fill(bytes.as_mut_slice()).map_err(|_| SecretError::Random)?;
    let mut text = String::with_capacity(32);
    for (index, byte) in bytes.iter().enumerate() {
        // 64 divides 256: every character is equally likely. A first `-` would be taken for an option by commands.
        let digit = match (index, usize::from(byte & 63)) {
            (0, digit) => digit % 32,
            (_, digit) => digit,
        };
        text.push(char::from(ALPHABET[digit]));
    }
    Ok(SecretString::from(text))
}

/// A token of 32 random bytes, in hexadecimal digits.
pub fn random_token() -> Result<SecretString, SecretError> {
    random_hex::<32>().map(SecretString::from)
}

pub(crate) fn random_hex<const BYTES: usize>() -> Result<String, SecretError> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    aws_lc_rs::rand::fill(bytes.as_mut_slice()).map_err(|_| SecretError::Random)?;
    Ok(raftsman_api::hex::encode(bytes.as_slice()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use secrecy::ExposeSecret;
    use tempfile::TempDir;

    use super::*;

    fn write(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> Secret {
        fs::write(dir.join(name), bytes).unwrap();
        fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
        Secret::File(name.to_owned())
    }

    #[test]
    fn a_file_gives_its_text_without_the_last_line_break() {
        let dir = TempDir::new().unwrap();
        for (text, wanted) in
            [("s3cret\n", "s3cret"), ("s3cret\r\n", "s3cret"), ("s3cret", "s3cret"), (" a\n\n", " a\n")]
        {
            let secret = write(dir.path(), "secret", text.as_bytes(), 0o600);
            assert_eq!(resolve(&secret, dir.path()).unwrap().expose_secret(), wanted);
        }
        write(dir.path(), "secret", b"for the group", 0o640);
        let absolute = Secret::File(dir.path().join("secret").to_str().unwrap().to_owned());
        assert_eq!(resolve(&absolute, Path::new("/nowhere")).unwrap().expose_secret(), "for the group");
    }

    #[test]
    fn a_variable_gives_its_value() {
        let secret = Secret::Env("CARGO_PKG_NAME".to_owned());
        assert_eq!(resolve(&secret, Path::new("")).unwrap().expose_secret(), "raftsman-engine");
    }

    #[test]
    fn messages_name_the_reference_and_never_the_value() {
        let dir = TempDir::new().unwrap();
        let base = dir.path();
        let large = vec![b'x'; 1024 * 1024 + 1];
        let cases = [
            ("missing", resolve(&Secret::File("missing".into()), base)),
            ("open to all", resolve(&write(base, "open", b"canary", 0o604), base)),
            ("empty", resolve(&write(base, "empty", b"", 0o600), base)),
            ("only a line break", resolve(&write(base, "break", b"\n", 0o600), base)),
            ("not text", resolve(&write(base, "binary", b"canary\xff", 0o600), base)),
            ("too large", resolve(&write(base, "large", &large, 0o600), base)),
            ("below a file", resolve(&Secret::File("empty/x".into()), base)),
            ("unset", resolve(&Secret::Env("RAFTSMAN_NO_SUCH_VARIABLE".into()), base)),
            ("empty variable", from_variable("ROOT_PASSWORD", Some(OsString::new()))),
            ("variable not text", {
                use std::os::unix::ffi::OsStringExt;
                from_variable("ROOT_PASSWORD", Some(OsString::from_vec(b"canary\xff".to_vec())))
            }),
        ];
        let mut text = String::new();
        for (case, result) in cases {
            text += &format!("{case}:\n  {}\n", result.unwrap_err());
        }
        let text = text.replace(base.to_str().unwrap(), "/base");
        assert!(!text.contains("canary"));
        insta::assert_snapshot!(text);
    }

    #[test]
    fn what_is_random_is_long_and_needs_no_quoting() {
        for _ in 0..200 {
            let password = random_password().unwrap();
            let password = password.expose_secret();
            assert_eq!(password.len(), 32);
            assert!(password.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
            assert!(password.starts_with(|first: char| first.is_ascii_alphabetic()));
        }
        let [one, two] = [random_token().unwrap(), random_token().unwrap()];
        assert_eq!(one.expose_secret().len(), 64);
        assert_ne!(one.expose_secret(), two.expose_secret());
    }
}
