/*
 * dlsym and dlopen as tail calls.
 *
 * For the loader, the return address of these two functions is "the caller". It decides which library RTLD_NEXT searches
 * first, and which object's RUNPATH and $ORIGIN apply. A wrapper in C would become the caller of every lookup. So we
 * inspect the arguments and jump: the real function gets the program's own return address and stack.
 */
        .hidden sp_filter
        .hidden sp_before_dlopen
        .hidden sp_resolve
        .hidden sp_chain_dlsym
        .hidden sp_chain_dlopen
        .hidden sp_dlopen_mask
        .text

/* Call a function of ours between the program's call and the real one; the two arguments are kept. */
        .macro  call_ours function
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp                /* the callee's stack is 16-byte aligned */
        .cfi_adjust_cfa_offset 8
        call    \function
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        .endm

/* void *dlsym(void *handle, const char *name) */
        .globl  dlsym
        .type   dlsym, @function
        .p2align 4
dlsym:
        .cfi_startproc
        endbr64
        leaq    1(%rdi), %rax           /* RTLD_NEXT is -1, RTLD_DEFAULT 0: never filtered, they are already right */
        cmpq    $1, %rax
        jbe     .Lnext
        testq   %rsi, %rsi
        jz      .Lnext
        call_ours sp_filter
        testq   %rax, %rax
        jz      .Lnext
        ret                             /* one of our wrappers */
.Lnext:
        movq    sp_chain_dlsym(%rip), %rax
        testq   %rax, %rax
        jz      .Lfirst
        jmp     *%rax
.Lfirst:
        call_ours sp_resolve
        movq    sp_chain_dlsym(%rip), %rax
        testq   %rax, %rax
        jz      .Lnone                  /* no loader that we know: as if nothing were found */
        jmp     *%rax
.Lnone:
        ret
        .cfi_endproc
        .size   dlsym, . - dlsym

/* void *dlopen(const char *path, int flags) */
        .globl  dlopen
        .type   dlopen, @function
        .p2align 4
dlopen:
        .cfi_startproc
        endbr64
        call_ours sp_before_dlopen
        movq    sp_chain_dlopen(%rip), %rax
        testq   %rax, %rax
        jz      .Lopen_none
        andl    sp_dlopen_mask(%rip), %esi
        jmp     *%rax
.Lopen_none:
        ret
        .cfi_endproc
        .size   dlopen, . - dlopen

        .section .note.GNU-stack, "", @progbits

/* This object keeps to the rules of Intel CET (indirect branch tracking, shadow stack). */
        .section .note.gnu.property, "a"
        .p2align 3
        .long   4, 16, 5
        .asciz  "GNU"
        .long   0xc0000002, 4, 3, 0
