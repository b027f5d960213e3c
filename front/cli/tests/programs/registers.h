/* Makes a system call with known contents of all registers, flags and the red zone, which are
 * compared after the call: the kernel changes rax, rcx and r11 only. For one thread at a time. */
#ifndef REGISTERS_H
#define REGISTERS_H

#include "check.h"

#include <string.h>
#include <sys/syscall.h>

#ifdef __x86_64__

enum { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15, GENERAL };

struct registers {
    uint64_t general[GENERAL];
    uint64_t red_zone[16];
    uint8_t vectors[32][64];
    uint64_t masks[8];
    uint64_t x87;
    uint64_t flags;
    uint32_t mxcsr;
    uint16_t control;
};

/* The assembler code names these, with the offsets of their fields. */
__attribute__((used)) struct registers registers_before, registers_after;
/* The available vector registers: xmm, ymm or zmm. */
__attribute__((used)) int registers_level;
long registers_call(void);
extern const char registers_next[];

_Static_assert(__builtin_offsetof(struct registers, red_zone) == 128
               && __builtin_offsetof(struct registers, vectors) == 256
               && __builtin_offsetof(struct registers, masks) == 2304
               && __builtin_offsetof(struct registers, x87) == 2368
               && __builtin_offsetof(struct registers, flags) == 2376
               && __builtin_offsetof(struct registers, mxcsr) == 2384
               && __builtin_offsetof(struct registers, control) == 2388, "as assembled below");

#define FIRST "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"
#define OTHERS "16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"
#define SAVED "rbx,rbp,r12,r13,r14,r15"

__asm__(
    ".text\n"
    ".macro vectors_loaded instruction, kind, numbers:vararg\n"
    "  .irp n,\\numbers\n"
    "    \\instruction registers_before+256+64*\\n(%rip), %\\kind\\n\n"
    "  .endr\n"
    ".endm\n"
    ".macro vectors_stored instruction, kind, numbers:vararg\n"
    "  .irp n,\\numbers\n"
    "    \\instruction %\\kind\\n, registers_after+256+64*\\n(%rip)\n"
    "  .endr\n"
    ".endm\n"
    /* Not rsp, rcx and r11. */
    ".macro general move\n"
    "  \\move rax, 0\n  \\move rdx, 16\n  \\move rbx, 24\n  \\move rbp, 40\n  \\move rsi, 48\n"
    "  \\move rdi, 56\n  \\move r8, 64\n  \\move r9, 72\n  \\move r10, 80\n  \\move r12, 96\n"
    "  \\move r13, 104\n  \\move r14, 112\n  \\move r15, 120\n"
    ".endm\n"
    ".macro general_loaded name, at\n  movq registers_before+\\at(%rip), %\\name\n.endm\n"
    ".macro general_stored name, at\n  movq %\\name, registers_after+\\at(%rip)\n.endm\n"
    ".globl registers_call, registers_next\n"
    ".type registers_call, @function\n"
    "registers_call:\n"
    "  .irp saved," SAVED "\n  pushq %\\saved\n  .endr\n"
    "  subq $8, %rsp\n"
    "  stmxcsr (%rsp)\n"
    "  fnstcw 4(%rsp)\n"
    "  ldmxcsr registers_before+2384(%rip)\n"
    "  fldcw registers_before+2388(%rip)\n"
    "  fildq registers_before+2368(%rip)\n"
    "  .irp n," FIRST "\n"
    "    movq registers_before+128+8*\\n(%rip), %rax\n"
    "    movq %rax, -8-8*\\n(%rsp)\n"
    "  .endr\n"
    "  cmpl $1, registers_level(%rip)\n"
    "  jb 1f\n"
    "  je 2f\n"
    "  vectors_loaded vmovdqu64, zmm, " FIRST "\n"
    "  vectors_loaded vmovdqu64, zmm, " OTHERS "\n"
    "  .irp n,1,2,3,4,5,6,7\n    kmovw registers_before+2304+8*\\n(%rip), %k\\n\n  .endr\n"
    "  jmp 3f\n"
    "2:\n"
    "  vectors_loaded vmovdqu, ymm, " FIRST "\n"
    "  jmp 3f\n"
    "1:\n"
    "  vectors_loaded movdqu, xmm, " FIRST "\n"
    "3:\n"
    "  movq %rsp, registers_before+32(%rip)\n"
    /* Through the stack, below the red zone. */
    "  leaq -128(%rsp), %rsp\n"
    "  pushq registers_before+2376(%rip)\n"
    "  popfq\n"
    "  leaq 128(%rsp), %rsp\n"
    "  general general_loaded\n"
    "  syscall\n"
    "registers_next:\n"
    "  general general_stored\n"
    "  movq %rcx, registers_after+8(%rip)\n"
    "  movq %r11, registers_after+88(%rip)\n"
    "  movq %rsp, registers_after+32(%rip)\n"
    "  movq registers_before+32(%rip), %rsp\n"
    "  leaq -128(%rsp), %rsp\n"
    "  pushfq\n"
    "  popq registers_after+2376(%rip)\n"
    "  leaq 128(%rsp), %rsp\n"
    "  cld\n"
    "  .irp n," FIRST "\n"
    "    movq -8-8*\\n(%rsp), %rax\n"
    "    movq %rax, registers_after+128+8*\\n(%rip)\n"
    "  .endr\n"
    "  cmpl $1, registers_level(%rip)\n"
    "  jb 1f\n"
    "  je 2f\n"
    "  vectors_stored vmovdqu64, zmm, " FIRST "\n"
    "  vectors_stored vmovdqu64, zmm, " OTHERS "\n"
    "  .irp n,1,2,3,4,5,6,7\n    kmovw %k\\n, registers_after+2304+8*\\n(%rip)\n  .endr\n"
    "  vzeroupper\n"
    "  jmp 3f\n"
    "2:\n"
    "  vectors_stored vmovdqu, ymm, " FIRST "\n"
    "  vzeroupper\n"
    "  jmp 3f\n"
    "1:\n"
    "  vectors_stored movdqu, xmm, " FIRST "\n"
    "3:\n"
    "  fistpq registers_after+2368(%rip)\n"
    "  fnstcw registers_after+2388(%rip)\n"
    "  stmxcsr registers_after+2384(%rip)\n"
    "  ldmxcsr (%rsp)\n"
    "  fldcw 4(%rsp)\n"
    "  addq $8, %rsp\n"
    "  .irp saved,r15,r14,r13,r12,rbp,rbx\n  popq %\\saved\n  .endr\n"
    "  movq registers_after(%rip), %rax\n"
    "  ret\n"
    ".size registers_call, .-registers_call\n");

static int vector_level(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") ? 2 : __builtin_cpu_supports("avx") ? 1 : 0;
}

static void compare_registers(const struct registers *before, const struct registers *after)
{
    static const size_t lengths[] = {16, 32, 64};
    enum { CARRY = 1, PARITY = 4, ADJUST = 16, ZERO = 64, SIGN = 128, DOWN = 1024, OVER = 2048 };
    const uint64_t flags = CARRY | PARITY | ADJUST | ZERO | SIGN | DOWN | OVER;
    for (int i = 0; i < GENERAL; i++)
        if (i != RAX && i != RCX && i != R11 && before->general[i] != after->general[i])
            die("general register %d: %lx, was %lx", i, after->general[i], before->general[i]);
    if (after->general[RCX] != (uintptr_t)registers_next)
        die("rcx: %lx", after->general[RCX]);
    if ((after->flags ^ before->flags) & flags || (after->general[R11] ^ before->flags) & flags)
        die("flags: %lx, r11 %lx, was %lx", after->flags, after->general[R11], before->flags);
    for (int i = 0; i < (registers_level == 2 ? 32 : 16); i++)
        if (memcmp(before->vectors[i], after->vectors[i], lengths[registers_level]) != 0)
            die("vector register %d is another one", i);
    for (int i = 1; i < 8 && registers_level == 2; i++)
        if ((uint16_t)before->masks[i] != (uint16_t)after->masks[i])
            die("mask register %d: %lx, was %lx", i, after->masks[i], before->masks[i]);
    MUST(memcmp(before->red_zone, after->red_zone, sizeof before->red_zone) == 0);
    MUST(before->x87 == after->x87 && before->control == after->control);
    MUST(before->mxcsr == after->mxcsr);
}

/* Makes a call; its further arguments are noise. Returns the kernel's result. */
static long call_with_registers(uint64_t *seed, long number, void *first, uint64_t second,
                                uint64_t third, void *fourth)
{
    enum { CARRY = 1, DOWN = 1024 };
    struct registers *it = &registers_before;
    uint64_t *words = (uint64_t *)it;
    registers_level = vector_level();
    for (size_t i = 0; i < sizeof *it / sizeof *words; i++)
        words[i] = next_random(seed);
    it->x87 >>= 2;
    it->general[RAX] = (uint64_t)number;
    it->general[RDI] = (uintptr_t)first, it->general[RSI] = second;
    it->general[RDX] = third, it->general[R10] = (uintptr_t)fourth;
    it->flags = 0x202 | (it->flags & (CARRY | DOWN));
    /* All exceptions masked; any rounding. */
    it->mxcsr = 0x1f80 | (it->mxcsr & 0x6000);
    it->control = 0x037f | (it->control & 0x0c00);
    registers_call();
    compare_registers(it, &registers_after);
    return (long)registers_after.general[RAX];
}

#else

/* Makes a call. Returns the kernel's result. */
static long call_with_registers(uint64_t *seed, long number, void *first, uint64_t second,
                                uint64_t third, void *fourth)
{
    (void)seed;
    long result = syscall(number, first, second, third, fourth);
    return result == -1 ? -errno : result;
}

#endif

#endif
