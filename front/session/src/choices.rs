//! Settings with a few named values.

use std::fmt;
use std::str::FromStr;

/// Defines an enum whose values have names: on the command line, and in the environment.
macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$of_value:meta])* $value:ident = $text:literal,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub enum $name {
                $($(#[$of_value])* $value,)*
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(match self {
                        $($name::$value => $text,)*
                    })
                }
            }

            impl FromStr for $name {
                type Err = String;

                fn from_str(text: &str) -> Result<$name, String> {
                    match text {
                        $($text => Ok($name::$value),)*
                        _ => Err(unknown(text, &[$($text),*])),
                    }
                }
            }
        )*
    };
}

/// The message for a value that has no such name.
fn unknown(text: &str, names: &[&str]) -> String {
    match names {
        [one, other] => format!("'{text}' is neither {one} nor {other}"),
        _ => format!("'{text}' is none of {}", names.join(", ")),
    }
}

choices! {
    /// The userfaultfd operation that maps and unmaps pages.
    Mapping {
        /// MOVE if the kernel has it, else COPY.
        #[default]
        Auto = "auto",
        /// UFFDIO_MOVE; refused by kernels before 6.8.
        Move = "move",
        /// UFFDIO_COPY and write protection, even if the kernel has MOVE.
        Copy = "copy",
    }

    /// Which mappings of files are served.
    MapFiles {
        /// None: all stay in the kernel's page cache.
        #[default]
        Off = "off",
        /// Mappings for reading, of files that are open for reading.
        Read = "read",
    }

    /// Which blocks of malloc are served.
    Malloc {
        /// Blocks of every size, once the process has asked for 1 MiB in all, or for 64 KiB at
        /// once.
        #[default]
        All = "all",
        /// Blocks of 64 KiB and more; smaller ones are the C library's.
        Large = "large",
    }

    /// Whether aligned blocks of 2 MiB are brought in, collapsed and swapped out as a whole.
    LargePages {
        /// Blocks are large pages where possible, and kcompactd makes room for them.
        On = "on",
        /// Pages come and go one by one, or in windows of up to 16.
        #[default]
        Off = "off",
    }

    /// How system calls reach paged memory.
    SystemCalls {
        /// The kernel faults, as programs do. Needs a userfaultfd for faults of the kernel.
        #[default]
        Faults = "faults",
        /// They get copies of what their arguments point to: a filter traps them. Needs no
        /// privileges.
        Copies = "copies",
    }

    /// The threads that serve page faults.
    FaultThreads {
        /// Handler threads beside the program.
        #[default]
        Handlers = "handlers",
        /// The one that faults, in a signal handler. System calls get copies. Programs with a
        /// malloc of their own have handlers.
        InThread = "in-thread",
    }
}

/// Whether faults, or system calls with paged memory, come to a program as signals.
pub fn come_as_signals(faults: FaultThreads, system_calls: SystemCalls) -> bool {
    faults == FaultThreads::InThread || system_calls == SystemCalls::Copies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for choice in [FaultThreads::Handlers, FaultThreads::InThread] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "fly".parse::<Mapping>().unwrap_err();
        assert_eq!(error, "'fly' is none of auto, move, copy");
        let error = "fly".parse::<Malloc>().unwrap_err();
        assert_eq!(error, "'fly' is neither all nor large");
    }
}
