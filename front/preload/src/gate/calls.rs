//! The system calls of x86-64 in Linux 6.18 and their arguments: a line per call, in the order of
//! numbers, arguments in the order of the kernel, sizes as in its structures.
//!
//! ```text
//! number ---> find ---> TABLE: Call { way, arguments }
//! ```
//! Programs of the x32 interface, whose numbers have bit 30, are not served. Constant: no locks.

use super::table::Argument::{self, In, InOut, Int, Mask, Number as N, Out, String as S};
use super::table::Len::{
    After, AfterOwn, At, Bits, Bytes, Items, Nodes, Of, Own, Pages, Result, ResultItems,
};
use super::table::Way::{self, Absent, Copied, InPlace, Passed, Special, Unknown};
use super::table::{Call, Len};

/// The call of a number; `None` for numbers that Linux 6.18 does not have.
pub(crate) fn find(number: usize) -> Option<&'static Call> {
    let place = TABLE.binary_search_by_key(&number, |call| usize::from(call.number)).ok()?;
    Some(&TABLE[place])
}

const fn call(number: u16, name: &'static str, way: Way, arguments: &'static [Argument]) -> Call {
    Call { number, name, way, arguments }
}

/// A time in seconds and microseconds or nanoseconds.
const TIME: Len = Bytes(16);
const TIMES: Len = Bytes(32);
const STAT: Len = Bytes(144);
const RUSAGE: Len = Bytes(144);
const SIGINFO: Len = Bytes(128);
const TIMEX: Len = Bytes(208);

/// All system calls, by number.
pub(crate) static TABLE: &[Call] = &[
    call(0, "read", Copied, &[N, Out(Result(2)), N]),
    call(1, "write", Copied, &[N, In(Of(2)), N]),
    call(2, "open", Copied, &[S, N, N]),
    call(3, "close", Passed, &[]),
    call(4, "stat", Copied, &[S, Out(STAT)]),
    call(5, "fstat", Copied, &[N, Out(STAT)]),
    call(6, "lstat", Copied, &[S, Out(STAT)]),
    call(7, "poll", Copied, &[InOut(Items(8, 1)), Int, N]),
    call(8, "lseek", Passed, &[]),
    call(9, "mmap", Passed, &[]),
    call(10, "mprotect", Passed, &[]),
    call(11, "munmap", Passed, &[]),
    call(12, "brk", Passed, &[]),
    call(13, "rt_sigaction", Special, &[]),
    call(14, "rt_sigprocmask", Special, &[]),
    call(15, "rt_sigreturn", Passed, &[]),
    call(16, "ioctl", Special, &[]),
    call(17, "pread64", Copied, &[N, Out(Result(2)), N, N]),
    call(18, "pwrite64", Copied, &[N, In(Of(2)), N, N]),
    call(19, "readv", Special, &[]),
    call(20, "writev", Special, &[]),
    call(21, "access", Copied, &[S, N]),
    call(22, "pipe", Copied, &[Out(Bytes(8))]),
    call(23, "select", Copied, &[Int, InOut(Bits(0)), InOut(Bits(0)), InOut(Bits(0)), InOut(TIME)]),
    call(24, "sched_yield", Passed, &[]),
    call(25, "mremap", Passed, &[]),
    call(26, "msync", Passed, &[]),
    call(27, "mincore", Copied, &[N, N, Out(Pages(1))]),
    call(28, "madvise", Special, &[]),
    call(29, "shmget", Passed, &[]),
    call(30, "shmat", Passed, &[]),
    call(31, "shmctl", Special, &[]),
    call(32, "dup", Passed, &[]),
    call(33, "dup2", Passed, &[]),
    call(34, "pause", Passed, &[]),
    call(35, "nanosleep", Copied, &[In(TIME), Out(TIME)]),
    call(36, "getitimer", Copied, &[N, Out(TIMES)]),
    call(37, "alarm", Passed, &[]),
    call(38, "setitimer", Copied, &[N, In(TIMES), Out(TIMES)]),
    call(39, "getpid", Passed, &[]),
    call(40, "sendfile", Copied, &[N, N, InOut(Bytes(8)), N]),
    call(41, "socket", Passed, &[]),
    call(42, "connect", Copied, &[N, In(Of(2)), Int]),
    call(43, "accept", Copied, &[N, Out(At(2)), InOut(Bytes(4))]),
    call(44, "sendto", Copied, &[N, In(Of(2)), N, N, In(Of(5)), Int]),
    call(45, "recvfrom", Copied, &[N, Out(Result(2)), N, N, Out(At(5)), InOut(Bytes(4))]),
    call(46, "sendmsg", Special, &[]),
    call(47, "recvmsg", Special, &[]),
    call(48, "shutdown", Passed, &[]),
    call(49, "bind", Copied, &[N, In(Of(2)), Int]),
    call(50, "listen", Passed, &[]),
    call(51, "getsockname", Copied, &[N, Out(At(2)), InOut(Bytes(4))]),
    call(52, "getpeername", Copied, &[N, Out(At(2)), InOut(Bytes(4))]),
    call(53, "socketpair", Copied, &[N, N, N, Out(Bytes(8))]),
    call(54, "setsockopt", Special, &[]),
    call(55, "getsockopt", Special, &[]),
    call(56, "clone", Passed, &[]),
    call(57, "fork", Passed, &[]),
    call(58, "vfork", Passed, &[]),
    call(59, "execve", Special, &[]),
    call(60, "exit", Passed, &[]),
    call(61, "wait4", Copied, &[N, Out(Bytes(4)), N, Out(RUSAGE)]),
    call(62, "kill", Passed, &[]),
    call(63, "uname", Copied, &[Out(Bytes(390))]),
    call(64, "semget", Passed, &[]),
    call(65, "semop", Copied, &[N, In(Items(6, 2)), Int]),
    call(66, "semctl", Special, &[]),
    call(67, "shmdt", Passed, &[]),
    call(68, "msgget", Passed, &[]),
    call(69, "msgsnd", Copied, &[N, In(After(8, 2)), N, N]),
    // The result counts the text only.
    call(70, "msgrcv", Copied, &[N, Out(After(8, 2)), N, N, N]),
    call(71, "msgctl", Special, &[]),
    call(72, "fcntl", Special, &[]),
    call(73, "flock", Passed, &[]),
    call(74, "fsync", Passed, &[]),
    call(75, "fdatasync", Passed, &[]),
    call(76, "truncate", Copied, &[S, N]),
    call(77, "ftruncate", Passed, &[]),
    call(78, "getdents", Copied, &[N, Out(Of(2)), Int]),
    call(79, "getcwd", Copied, &[Out(Result(1)), N]),
    call(80, "chdir", Copied, &[S]),
    call(81, "fchdir", Passed, &[]),
    call(82, "rename", Copied, &[S, S]),
    call(83, "mkdir", Copied, &[S, N]),
    call(84, "rmdir", Copied, &[S]),
    call(85, "creat", Copied, &[S, N]),
    call(86, "link", Copied, &[S, S]),
    call(87, "unlink", Copied, &[S]),
    call(88, "symlink", Copied, &[S, S]),
    call(89, "readlink", Copied, &[S, Out(Result(2)), Int]),
    call(90, "chmod", Copied, &[S, N]),
    call(91, "fchmod", Passed, &[]),
    call(92, "chown", Copied, &[S, N, N]),
    call(93, "fchown", Passed, &[]),
    call(94, "lchown", Copied, &[S, N, N]),
    call(95, "umask", Passed, &[]),
    call(96, "gettimeofday", Copied, &[Out(TIME), Out(Bytes(8))]),
    call(97, "getrlimit", Copied, &[N, Out(Bytes(16))]),
    call(98, "getrusage", Copied, &[N, Out(RUSAGE)]),
    call(99, "sysinfo", Copied, &[Out(Bytes(112))]),
    call(100, "times", Copied, &[Out(Bytes(32))]),
    call(101, "ptrace", Special, &[]),
    call(102, "getuid", Passed, &[]),
    call(103, "syslog", Special, &[]),
    call(104, "getgid", Passed, &[]),
    call(105, "setuid", Passed, &[]),
    call(106, "setgid", Passed, &[]),
    call(107, "geteuid", Passed, &[]),
    call(108, "getegid", Passed, &[]),
    call(109, "setpgid", Passed, &[]),
    call(110, "getppid", Passed, &[]),
    call(111, "getpgrp", Passed, &[]),
    call(112, "setsid", Passed, &[]),
    call(113, "setreuid", Passed, &[]),
    call(114, "setregid", Passed, &[]),
    call(115, "getgroups", Copied, &[Int, Out(ResultItems(4, 0))]),
    call(116, "setgroups", Copied, &[Int, In(Items(4, 0))]),
    call(117, "setresuid", Passed, &[]),
    call(118, "getresuid", Copied, &[Out(Bytes(4)), Out(Bytes(4)), Out(Bytes(4))]),
    call(119, "setresgid", Passed, &[]),
    call(120, "getresgid", Copied, &[Out(Bytes(4)), Out(Bytes(4)), Out(Bytes(4))]),
    call(121, "getpgid", Passed, &[]),
    call(122, "setfsuid", Passed, &[]),
    call(123, "setfsgid", Passed, &[]),
    call(124, "getsid", Passed, &[]),
    call(125, "capget", Copied, &[InOut(Bytes(8)), Out(Bytes(24))]),
    call(126, "capset", Copied, &[InOut(Bytes(8)), In(Bytes(24))]),
    call(127, "rt_sigpending", Copied, &[Out(Bytes(8)), N]),
    call(128, "rt_sigtimedwait", Copied, &[In(Bytes(8)), Out(SIGINFO), In(TIME), N]),
    call(129, "rt_sigqueueinfo", Copied, &[N, N, In(SIGINFO)]),
    call(130, "rt_sigsuspend", Special, &[]),
    call(131, "sigaltstack", Special, &[]),
    call(132, "utime", Copied, &[S, In(Bytes(16))]),
    call(133, "mknod", Copied, &[S, N, N]),
    call(134, "uselib", Copied, &[S]),
    call(135, "personality", Passed, &[]),
    call(136, "ustat", Copied, &[N, Out(Bytes(32))]),
    call(137, "statfs", Copied, &[S, Out(Bytes(120))]),
    call(138, "fstatfs", Copied, &[N, Out(Bytes(120))]),
    call(139, "sysfs", Unknown, &[]),
    call(140, "getpriority", Passed, &[]),
    call(141, "setpriority", Passed, &[]),
    call(142, "sched_setparam", Copied, &[N, In(Bytes(4))]),
    call(143, "sched_getparam", Copied, &[N, Out(Bytes(4))]),
    call(144, "sched_setscheduler", Copied, &[N, N, In(Bytes(4))]),
    call(145, "sched_getscheduler", Passed, &[]),
    call(146, "sched_get_priority_max", Passed, &[]),
    call(147, "sched_get_priority_min", Passed, &[]),
    call(148, "sched_rr_get_interval", Copied, &[N, Out(TIME)]),
    call(149, "mlock", Passed, &[]),
    call(150, "munlock", Passed, &[]),
    call(151, "mlockall", Passed, &[]),
    call(152, "munlockall", Passed, &[]),
    call(153, "vhangup", Passed, &[]),
    call(154, "modify_ldt", Unknown, &[]),
    call(155, "pivot_root", Copied, &[S, S]),
    call(156, "_sysctl", Passed, &[]),
    call(157, "prctl", Special, &[]),
    call(158, "arch_prctl", Special, &[]),
    call(159, "adjtimex", Copied, &[InOut(TIMEX)]),
    call(160, "setrlimit", Copied, &[N, In(Bytes(16))]),
    call(161, "chroot", Copied, &[S]),
    call(162, "sync", Passed, &[]),
    call(163, "acct", Copied, &[S]),
    call(164, "settimeofday", Copied, &[In(TIME), In(Bytes(8))]),
    call(165, "mount", Copied, &[S, S, S, N, S]),
    call(166, "umount2", Copied, &[S, N]),
    call(167, "swapon", Copied, &[S, N]),
    call(168, "swapoff", Copied, &[S]),
    call(169, "reboot", Copied, &[N, N, N, S]),
    call(170, "sethostname", Copied, &[In(Of(1)), Int]),
    call(171, "setdomainname", Copied, &[In(Of(1)), Int]),
    call(172, "iopl", Passed, &[]),
    call(173, "ioperm", Passed, &[]),
    call(174, "create_module", Passed, &[]),
    call(175, "init_module", Copied, &[In(Of(1)), N, S]),
    call(176, "delete_module", Copied, &[S, N]),
    call(177, "get_kernel_syms", Passed, &[]),
    call(178, "query_module", Passed, &[]),
    call(179, "quotactl", Unknown, &[]),
    call(180, "nfsservctl", Passed, &[]),
    call(181, "getpmsg", Passed, &[]),
    call(182, "putpmsg", Passed, &[]),
    call(183, "afs_syscall", Passed, &[]),
    call(184, "tuxcall", Passed, &[]),
    call(185, "security", Passed, &[]),
    call(186, "gettid", Passed, &[]),
    call(187, "readahead", Passed, &[]),
    call(188, "setxattr", Copied, &[S, S, In(Of(3)), N, N]),
    call(189, "lsetxattr", Copied, &[S, S, In(Of(3)), N, N]),
    call(190, "fsetxattr", Copied, &[N, S, In(Of(3)), N, N]),
    call(191, "getxattr", Copied, &[S, S, Out(Result(3)), N]),
    call(192, "lgetxattr", Copied, &[S, S, Out(Result(3)), N]),
    call(193, "fgetxattr", Copied, &[N, S, Out(Result(3)), N]),
    call(194, "listxattr", Copied, &[S, Out(Result(2)), N]),
    call(195, "llistxattr", Copied, &[S, Out(Result(2)), N]),
    call(196, "flistxattr", Copied, &[N, Out(Result(2)), N]),
    call(197, "removexattr", Copied, &[S, S]),
    call(198, "lremovexattr", Copied, &[S, S]),
    call(199, "fremovexattr", Copied, &[N, S]),
    call(200, "tkill", Passed, &[]),
    call(201, "time", Copied, &[Out(Bytes(8))]),
    call(202, "futex", InPlace, &[]),
    call(203, "sched_setaffinity", Copied, &[N, Int, In(Of(1))]),
    call(204, "sched_getaffinity", Copied, &[N, Int, Out(Result(1))]),
    call(205, "set_thread_area", Passed, &[]),
    call(206, "io_setup", Absent, &[]),
    call(207, "io_destroy", Absent, &[]),
    call(208, "io_getevents", Absent, &[]),
    call(209, "io_submit", Absent, &[]),
    call(210, "io_cancel", Absent, &[]),
    call(211, "get_thread_area", Passed, &[]),
    call(212, "lookup_dcookie", Copied, &[N, Out(Result(2)), N]),
    call(213, "epoll_create", Passed, &[]),
    call(214, "epoll_ctl_old", Passed, &[]),
    call(215, "epoll_wait_old", Passed, &[]),
    call(216, "remap_file_pages", Passed, &[]),
    call(217, "getdents64", Copied, &[N, Out(Of(2)), Int]),
    call(218, "set_tid_address", Passed, &[]),
    call(219, "restart_syscall", Passed, &[]),
    call(220, "semtimedop", Copied, &[N, In(Items(6, 2)), Int, In(TIME)]),
    call(221, "fadvise64", Passed, &[]),
    call(222, "timer_create", Copied, &[N, In(Bytes(64)), Out(Bytes(4))]),
    call(223, "timer_settime", Copied, &[N, N, In(TIMES), Out(TIMES)]),
    call(224, "timer_gettime", Copied, &[N, Out(TIMES)]),
    call(225, "timer_getoverrun", Passed, &[]),
    call(226, "timer_delete", Passed, &[]),
    call(227, "clock_settime", Copied, &[N, In(TIME)]),
    call(228, "clock_gettime", Copied, &[N, Out(TIME)]),
    call(229, "clock_getres", Copied, &[N, Out(TIME)]),
    call(230, "clock_nanosleep", Copied, &[N, N, In(TIME), Out(TIME)]),
    call(231, "exit_group", Passed, &[]),
    call(232, "epoll_wait", Copied, &[N, Out(ResultItems(12, 2)), Int, N]),
    call(233, "epoll_ctl", Copied, &[N, N, N, In(Bytes(12))]),
    call(234, "tgkill", Passed, &[]),
    call(235, "utimes", Copied, &[S, In(TIMES)]),
    call(236, "vserver", Passed, &[]),
    call(237, "mbind", Copied, &[N, N, N, In(Nodes(4)), N, N]),
    call(238, "set_mempolicy", Copied, &[N, In(Nodes(2)), N]),
    call(239, "get_mempolicy", Copied, &[Out(Bytes(4)), Out(Nodes(2)), N, N, N]),
    call(240, "mq_open", Copied, &[S, N, N, In(Bytes(64))]),
    call(241, "mq_unlink", Copied, &[S]),
    call(242, "mq_timedsend", Copied, &[N, In(Of(2)), N, N, In(TIME)]),
    call(243, "mq_timedreceive", Copied, &[N, Out(Result(2)), N, Out(Bytes(4)), In(TIME)]),
    // With SIGEV_THREAD, the value is a pointer to 32 bytes that the kernel reads.
    call(244, "mq_notify", Special, &[]),
    call(245, "mq_getsetattr", Copied, &[N, In(Bytes(64)), Out(Bytes(64))]),
    call(246, "kexec_load", Unknown, &[]),
    // Of siginfo, only the fields up to si_status are written.
    call(247, "waitid", Copied, &[N, N, Out(Bytes(28)), N, Out(RUSAGE)]),
    call(248, "add_key", Copied, &[S, S, In(Of(3)), N, N]),
    call(249, "request_key", Copied, &[S, S, S, N]),
    call(250, "keyctl", Unknown, &[]),
    call(251, "ioprio_set", Passed, &[]),
    call(252, "ioprio_get", Passed, &[]),
    call(253, "inotify_init", Passed, &[]),
    call(254, "inotify_add_watch", Copied, &[N, S, N]),
    call(255, "inotify_rm_watch", Passed, &[]),
    call(256, "migrate_pages", Copied, &[N, N, In(Nodes(1)), In(Nodes(1))]),
    call(257, "openat", Copied, &[N, S, N, N]),
    call(258, "mkdirat", Copied, &[N, S, N]),
    call(259, "mknodat", Copied, &[N, S, N, N]),
    call(260, "fchownat", Copied, &[N, S, N, N, N]),
    call(261, "futimesat", Copied, &[N, S, In(TIMES)]),
    call(262, "newfstatat", Copied, &[N, S, Out(STAT), N]),
    call(263, "unlinkat", Copied, &[N, S, N]),
    call(264, "renameat", Copied, &[N, S, N, S]),
    call(265, "linkat", Copied, &[N, S, N, S, N]),
    call(266, "symlinkat", Copied, &[S, N, S]),
    call(267, "readlinkat", Copied, &[N, S, Out(Result(3)), Int]),
    call(268, "fchmodat", Copied, &[N, S, N]),
    call(269, "faccessat", Copied, &[N, S, N]),
    call(270, "pselect6", Special, &[]),
    call(271, "ppoll", Copied, &[InOut(Items(8, 1)), Int, InOut(TIME), Mask, N]),
    call(272, "unshare", Passed, &[]),
    call(273, "set_robust_list", Passed, &[]),
    call(274, "get_robust_list", Copied, &[N, Out(Bytes(8)), Out(Bytes(8))]),
    call(275, "splice", Copied, &[N, InOut(Bytes(8)), N, InOut(Bytes(8)), N, N]),
    call(276, "tee", Passed, &[]),
    call(277, "sync_file_range", Passed, &[]),
    call(278, "vmsplice", Special, &[]),
    // The addresses of the first array are only named.
    call(279, "move_pages", Copied, &[N, N, In(Items(8, 1)), In(Items(4, 1)), Out(Items(4, 1)), N]),
    call(280, "utimensat", Copied, &[N, S, In(TIMES), N]),
    call(281, "epoll_pwait", Copied, &[N, Out(ResultItems(12, 2)), Int, N, Mask, N]),
    call(282, "signalfd", Copied, &[N, In(Bytes(8)), N]),
    call(283, "timerfd_create", Passed, &[]),
    call(284, "eventfd", Passed, &[]),
    call(285, "fallocate", Passed, &[]),
    call(286, "timerfd_settime", Copied, &[N, N, In(TIMES), Out(TIMES)]),
    call(287, "timerfd_gettime", Copied, &[N, Out(TIMES)]),
    call(288, "accept4", Copied, &[N, Out(At(2)), InOut(Bytes(4)), N]),
    call(289, "signalfd4", Copied, &[N, In(Bytes(8)), N, N]),
    call(290, "eventfd2", Passed, &[]),
    call(291, "epoll_create1", Passed, &[]),
    call(292, "dup3", Passed, &[]),
    call(293, "pipe2", Copied, &[Out(Bytes(8)), N]),
    call(294, "inotify_init1", Passed, &[]),
    call(295, "preadv", Special, &[]),
    call(296, "pwritev", Special, &[]),
    call(297, "rt_tgsigqueueinfo", Copied, &[N, N, N, In(SIGINFO)]),
    // The size is the second word of its structure, which names paths of probes.
    call(298, "perf_event_open", Special, &[]),
    call(299, "recvmmsg", Special, &[]),
    call(300, "fanotify_init", Passed, &[]),
    call(301, "fanotify_mark", Copied, &[N, N, N, N, S]),
    call(302, "prlimit64", Copied, &[N, N, In(Bytes(16)), Out(Bytes(16))]),
    // A mount id has 4 bytes, or 8 with AT_HANDLE_MNT_ID_UNIQUE.
    call(303, "name_to_handle_at", Copied, &[N, S, InOut(AfterOwn(8)), InOut(Bytes(8)), N]),
    call(304, "open_by_handle_at", Copied, &[N, In(AfterOwn(8)), N]),
    call(305, "clock_adjtime", Copied, &[N, InOut(TIMEX)]),
    call(306, "syncfs", Passed, &[]),
    call(307, "sendmmsg", Special, &[]),
    call(308, "setns", Passed, &[]),
    call(309, "getcpu", Copied, &[Out(Bytes(4)), Out(Bytes(4)), N]),
    call(310, "process_vm_readv", Special, &[]),
    call(311, "process_vm_writev", Special, &[]),
    // The last is a number, except for KCMP_EPOLL_TFD.
    call(312, "kcmp", Copied, &[N, N, N, N, In(Bytes(12))]),
    call(313, "finit_module", Copied, &[N, S, N]),
    call(314, "sched_setattr", Copied, &[N, InOut(Own), N]),
    call(315, "sched_getattr", Copied, &[N, Out(Of(2)), Int, N]),
    call(316, "renameat2", Copied, &[N, S, N, S, N]),
    call(317, "seccomp", Special, &[]),
    call(318, "getrandom", Copied, &[Out(Result(1)), N, N]),
    call(319, "memfd_create", Copied, &[S, N]),
    call(320, "kexec_file_load", Copied, &[N, N, N, In(Of(2)), N]),
    call(321, "bpf", Unknown, &[]),
    call(322, "execveat", Special, &[]),
    call(323, "userfaultfd", Passed, &[]),
    call(324, "membarrier", Passed, &[]),
    call(325, "mlock2", Passed, &[]),
    call(326, "copy_file_range", Copied, &[N, InOut(Bytes(8)), N, InOut(Bytes(8)), N, N]),
    call(327, "preadv2", Special, &[]),
    call(328, "pwritev2", Special, &[]),
    call(329, "pkey_mprotect", Passed, &[]),
    call(330, "pkey_alloc", Passed, &[]),
    call(331, "pkey_free", Passed, &[]),
    call(332, "statx", Copied, &[N, S, N, N, Out(Bytes(256))]),
    call(333, "io_pgetevents", Absent, &[]),
    call(334, "rseq", Absent, &[]),
    // Made by the trampolines of the kernel's own probes.
    call(335, "uretprobe", Passed, &[]),
    call(336, "uprobe", Passed, &[]),
    call(424, "pidfd_send_signal", Copied, &[N, N, In(SIGINFO), N]),
    call(425, "io_uring_setup", Absent, &[]),
    call(426, "io_uring_enter", Absent, &[]),
    call(427, "io_uring_register", Absent, &[]),
    call(428, "open_tree", Copied, &[N, S, N]),
    call(429, "move_mount", Copied, &[N, S, N, S, N]),
    call(430, "fsopen", Copied, &[S, N]),
    // The value is a string, bytes or nothing, by the command.
    call(431, "fsconfig", Special, &[]),
    call(432, "fsmount", Passed, &[]),
    call(433, "fspick", Copied, &[N, S, N]),
    call(434, "pidfd_open", Passed, &[]),
    call(435, "clone3", Special, &[]),
    call(436, "close_range", Passed, &[]),
    call(437, "openat2", Copied, &[N, S, In(Of(3)), N]),
    call(438, "pidfd_getfd", Passed, &[]),
    call(439, "faccessat2", Copied, &[N, S, N, N]),
    call(440, "process_madvise", Special, &[]),
    call(441, "epoll_pwait2", Copied, &[N, Out(ResultItems(12, 2)), Int, In(TIME), Mask, N]),
    call(442, "mount_setattr", Copied, &[N, S, N, In(Of(4)), N]),
    call(443, "quotactl_fd", Unknown, &[]),
    call(444, "landlock_create_ruleset", Copied, &[In(Of(1)), N, N]),
    // 12 bytes for a path, 16 for a port.
    call(445, "landlock_add_rule", Copied, &[N, N, In(Bytes(16)), N]),
    call(446, "landlock_restrict_self", Passed, &[]),
    call(447, "memfd_secret", Passed, &[]),
    call(448, "process_mrelease", Passed, &[]),
    call(449, "futex_waitv", Special, &[]),
    call(450, "set_mempolicy_home_node", Passed, &[]),
    call(451, "cachestat", Copied, &[N, In(Bytes(16)), Out(Bytes(40)), N]),
    call(452, "fchmodat2", Copied, &[N, S, N, N]),
    call(453, "map_shadow_stack", Passed, &[]),
    call(454, "futex_wake", InPlace, &[]),
    call(455, "futex_wait", InPlace, &[]),
    call(456, "futex_requeue", Special, &[]),
    call(457, "statmount", Copied, &[In(Own), Out(Of(2)), N, N]),
    call(458, "listmount", Copied, &[In(Own), Out(ResultItems(8, 2)), N, N]),
    call(459, "lsm_get_self_attr", Copied, &[N, InOut(At(2)), InOut(Bytes(4)), N]),
    call(460, "lsm_set_self_attr", Copied, &[N, In(Of(2)), Int, N]),
    call(461, "lsm_list_modules", Copied, &[Out(At(1)), InOut(Bytes(4)), N]),
    // Highwater could not keep sealed pages as they are.
    call(462, "mseal", Absent, &[]),
    // A structure holds the pointer to the value.
    call(463, "setxattrat", Special, &[]),
    call(464, "getxattrat", Special, &[]),
    call(465, "listxattrat", Copied, &[N, S, N, Out(Result(4)), N]),
    call(466, "removexattrat", Copied, &[N, S, N, S]),
    call(467, "open_tree_attr", Copied, &[N, S, N, In(Of(4)), N]),
    call(468, "file_getattr", Copied, &[N, S, Out(Of(3)), N, N]),
    call(469, "file_setattr", Copied, &[N, S, In(Of(3)), N, N]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    macro_rules! of_libc {
        ($($name:ident)*) => {
            [$((stringify!($name), libc::$name)),*]
        };
    }

    /// Calls that the libc crate does not name, with the numbers of the kernel's syscall_64.tbl.
    #[rustfmt::skip]
    const NEWER_OR_OLDER: &[(&str, libc::c_long)] = &[
        ("SYS_create_module", 174), ("SYS_get_kernel_syms", 177), ("SYS_query_module", 178),
        ("SYS_io_pgetevents", 333), ("SYS_uretprobe", 335), ("SYS_uprobe", 336),
        ("SYS_cachestat", 451), ("SYS_map_shadow_stack", 453), ("SYS_futex_wake", 454),
        ("SYS_futex_wait", 455), ("SYS_futex_requeue", 456), ("SYS_statmount", 457),
        ("SYS_listmount", 458), ("SYS_lsm_get_self_attr", 459), ("SYS_lsm_set_self_attr", 460),
        ("SYS_lsm_list_modules", 461), ("SYS_setxattrat", 463), ("SYS_getxattrat", 464),
        ("SYS_listxattrat", 465), ("SYS_removexattrat", 466), ("SYS_open_tree_attr", 467),
        ("SYS_file_getattr", 468), ("SYS_file_setattr", 469),
    ];

    const OF_LIBC: &[(&str, libc::c_long)] = &of_libc! {
        SYS_read SYS_write SYS_open SYS_close SYS_stat SYS_fstat SYS_lstat SYS_poll SYS_lseek
        SYS_mmap SYS_mprotect SYS_munmap SYS_brk SYS_rt_sigaction SYS_rt_sigprocmask
        SYS_rt_sigreturn SYS_ioctl SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_access SYS_pipe
        SYS_select SYS_sched_yield SYS_mremap SYS_msync SYS_mincore SYS_madvise SYS_shmget SYS_shmat
        SYS_shmctl SYS_dup SYS_dup2 SYS_pause SYS_nanosleep SYS_getitimer SYS_alarm SYS_setitimer
        SYS_getpid SYS_sendfile SYS_socket SYS_connect SYS_accept SYS_sendto SYS_recvfrom
        SYS_sendmsg SYS_recvmsg SYS_shutdown SYS_bind SYS_listen SYS_getsockname SYS_getpeername
        SYS_socketpair SYS_setsockopt SYS_getsockopt SYS_clone SYS_fork SYS_vfork SYS_execve
        SYS_exit SYS_wait4 SYS_kill SYS_uname SYS_semget SYS_semop SYS_semctl SYS_shmdt SYS_msgget
        SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_truncate
        SYS_ftruncate SYS_getdents SYS_getcwd SYS_chdir SYS_fchdir SYS_rename SYS_mkdir SYS_rmdir
        SYS_creat SYS_link SYS_unlink SYS_symlink SYS_readlink SYS_chmod SYS_fchmod SYS_chown
        SYS_fchown SYS_lchown SYS_umask SYS_gettimeofday SYS_getrlimit SYS_getrusage SYS_sysinfo
        SYS_times SYS_ptrace SYS_getuid SYS_syslog SYS_getgid SYS_setuid SYS_setgid SYS_geteuid
        SYS_getegid SYS_setpgid SYS_getppid SYS_getpgrp SYS_setsid SYS_setreuid SYS_setregid
        SYS_getgroups SYS_setgroups SYS_setresuid SYS_getresuid SYS_setresgid SYS_getresgid
        SYS_getpgid SYS_setfsuid SYS_setfsgid SYS_getsid SYS_capget SYS_capset SYS_rt_sigpending
        SYS_rt_sigtimedwait SYS_rt_sigqueueinfo SYS_rt_sigsuspend SYS_sigaltstack SYS_utime
        SYS_mknod SYS_uselib SYS_personality SYS_ustat SYS_statfs SYS_fstatfs SYS_sysfs
        SYS_getpriority SYS_setpriority SYS_sched_setparam SYS_sched_getparam SYS_sched_setscheduler
        SYS_sched_getscheduler SYS_sched_get_priority_max SYS_sched_get_priority_min
        SYS_sched_rr_get_interval SYS_mlock SYS_munlock SYS_mlockall SYS_munlockall SYS_vhangup
        SYS_modify_ldt SYS_pivot_root SYS__sysctl SYS_prctl SYS_arch_prctl SYS_adjtimex
        SYS_setrlimit SYS_chroot SYS_sync SYS_acct SYS_settimeofday SYS_mount SYS_umount2 SYS_swapon
        SYS_swapoff SYS_reboot SYS_sethostname SYS_setdomainname SYS_iopl SYS_ioperm SYS_init_module
        SYS_delete_module SYS_quotactl SYS_nfsservctl SYS_getpmsg SYS_putpmsg SYS_afs_syscall
        SYS_tuxcall SYS_security SYS_gettid SYS_readahead SYS_setxattr SYS_lsetxattr SYS_fsetxattr
        SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr
        SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_tkill SYS_time SYS_futex
        SYS_sched_setaffinity SYS_sched_getaffinity SYS_set_thread_area SYS_io_setup SYS_io_destroy
        SYS_io_getevents SYS_io_submit SYS_io_cancel SYS_get_thread_area SYS_lookup_dcookie
        SYS_epoll_create SYS_epoll_ctl_old SYS_epoll_wait_old SYS_remap_file_pages SYS_getdents64
        SYS_set_tid_address SYS_restart_syscall SYS_semtimedop SYS_fadvise64 SYS_timer_create
        SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete SYS_clock_settime
        SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_exit_group SYS_epoll_wait
        SYS_epoll_ctl SYS_tgkill SYS_utimes SYS_vserver SYS_mbind SYS_set_mempolicy
        SYS_get_mempolicy SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive
        SYS_mq_notify SYS_mq_getsetattr SYS_kexec_load SYS_waitid SYS_add_key SYS_request_key
        SYS_keyctl SYS_ioprio_set SYS_ioprio_get SYS_inotify_init SYS_inotify_add_watch
        SYS_inotify_rm_watch SYS_migrate_pages SYS_openat SYS_mkdirat SYS_mknodat SYS_fchownat
        SYS_futimesat SYS_newfstatat SYS_unlinkat SYS_renameat SYS_linkat SYS_symlinkat
        SYS_readlinkat SYS_fchmodat SYS_faccessat SYS_pselect6 SYS_ppoll SYS_unshare
        SYS_set_robust_list SYS_get_robust_list SYS_splice SYS_tee SYS_sync_file_range SYS_vmsplice
        SYS_move_pages SYS_utimensat SYS_epoll_pwait SYS_signalfd SYS_timerfd_create SYS_eventfd
        SYS_fallocate SYS_timerfd_settime SYS_timerfd_gettime SYS_accept4 SYS_signalfd4 SYS_eventfd2
        SYS_epoll_create1 SYS_dup3 SYS_pipe2 SYS_inotify_init1 SYS_preadv SYS_pwritev
        SYS_rt_tgsigqueueinfo SYS_perf_event_open SYS_recvmmsg SYS_fanotify_init SYS_fanotify_mark
        SYS_prlimit64 SYS_name_to_handle_at SYS_open_by_handle_at SYS_clock_adjtime SYS_syncfs
        SYS_sendmmsg SYS_setns SYS_getcpu SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp
        SYS_finit_module SYS_sched_setattr SYS_sched_getattr SYS_renameat2 SYS_seccomp SYS_getrandom
        SYS_memfd_create SYS_kexec_file_load SYS_bpf SYS_execveat SYS_userfaultfd SYS_membarrier
        SYS_mlock2 SYS_copy_file_range SYS_preadv2 SYS_pwritev2 SYS_pkey_mprotect SYS_pkey_alloc
        SYS_pkey_free SYS_statx SYS_rseq SYS_pidfd_send_signal SYS_io_uring_setup SYS_io_uring_enter
        SYS_io_uring_register SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount
        SYS_fspick SYS_pidfd_open SYS_clone3 SYS_close_range SYS_openat2 SYS_pidfd_getfd
        SYS_faccessat2 SYS_process_madvise SYS_epoll_pwait2 SYS_mount_setattr SYS_quotactl_fd
        SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
        SYS_memfd_secret SYS_process_mrelease SYS_futex_waitv SYS_set_mempolicy_home_node
        SYS_fchmodat2 SYS_mseal
    };

    /// The argument that gives the length of another argument in bytes.
    fn named(len: Len) -> Option<usize> {
        match len {
            Of(index) | After(_, index) | Items(_, index) | Result(index) => Some(index.into()),
            ResultItems(_, index) | At(index) | Bits(index) => Some(index.into()),
            Pages(index) | Nodes(index) => Some(index.into()),
            Bytes(_) | Own | AfterOwn(_) | Len::Window(_) => None,
        }
    }

    fn len(argument: Argument) -> Option<Len> {
        match argument {
            In(len) | Out(len) | InOut(len) => Some(len),
            N | Int | S | Mask => None,
        }
    }

    #[test]
    fn numbers_ascend() {
        assert!(TABLE.is_sorted_by(|left, right| left.number < right.number));
    }

    #[test]
    fn numbers_are_those_of_libc() {
        let ours = TABLE.iter().map(|call| (format!("SYS_{}", call.name), call.number.into()));
        let ours: BTreeMap<String, libc::c_long> = ours.collect();
        let known = OF_LIBC.iter().chain(NEWER_OR_OLDER);
        let known: BTreeMap<String, _> = known.map(|(name, n)| (name.to_string(), *n)).collect();
        assert_eq!(ours, known);
        assert_eq!(ours.len(), TABLE.len(), "a name occurs twice");
    }

    #[test]
    fn calls_are_found() {
        for number in 0..=1024 {
            let listed = TABLE.iter().find(|call| usize::from(call.number) == number);
            assert_eq!(find(number).map(|call| call.name), listed.map(|call| call.name));
        }
        assert!((0..=336).chain(424..=469).all(|number| find(number).is_some()));
        assert!(find(1 << 30).is_none() && find(usize::MAX).is_none());
    }

    #[test]
    fn lengths_name_numbers() {
        for call in TABLE {
            for len in call.arguments.iter().filter_map(|argument| len(*argument)) {
                let Some(index) = named(len) else { continue };
                let source = call.arguments.get(index);
                let fits = match len {
                    At(_) => source == Some(&InOut(Bytes(4))),
                    _ => matches!(source, Some(N | Int)),
                };
                assert!(fits, "{}: {len:?} names {source:?}", call.name);
            }
        }
    }

    #[test]
    fn short_numbers_are_lengths() {
        for call in TABLE {
            let lens = call.arguments.iter().filter_map(|argument| len(*argument));
            let named: Vec<usize> = lens.filter_map(named).collect();
            for (index, argument) in call.arguments.iter().enumerate() {
                assert!(*argument != Int || named.contains(&index), "{}", call.name);
            }
        }
    }

    #[test]
    fn only_copied_calls_have_arguments() {
        for call in TABLE {
            let has_pointers = call.arguments.iter().any(|argument| !matches!(argument, N | Int));
            assert_eq!(has_pointers, call.way == Copied, "{}", call.name);
            assert!(has_pointers || call.arguments.is_empty(), "{}", call.name);
            assert!(call.arguments.len() <= 6, "{}", call.name);
        }
    }
}
