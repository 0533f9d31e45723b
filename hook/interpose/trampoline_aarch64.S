/*
 * dlsym and dlopen as tail calls: the aarch64 twin of trampoline_x86_64.S, where the reasons stand.
 * "The caller" is the link register here.
 */
        .hidden sp_filter
        .hidden sp_before_dlopen
        .hidden sp_resolve
        .hidden sp_chain_dlsym
        .hidden sp_chain_dlopen
        .hidden sp_dlopen_mask
        .text

        .macro  save_arguments
        stp     x29, x30, [sp, #-32]!
        .cfi_adjust_cfa_offset 32
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        .endm

        .macro  restore_frame
        ldp     x29, x30, [sp], #32
        .cfi_adjust_cfa_offset -32
        .cfi_restore x29
        .cfi_restore x30
        .endm

/* void *dlsym(void *handle, const char *name) */
        .globl  dlsym
        .type   dlsym, %function
        .p2align 4
dlsym:
        .cfi_startproc
        hint    #34                     /* bti c */
        add     x16, x0, #1             /* RTLD_NEXT is -1, RTLD_DEFAULT 0: never filtered */
        cmp     x16, #1
        b.ls    .Lnext
        cbz     x1, .Lnext
        save_arguments
        bl      sp_filter
        mov     x16, x0
        ldp     x0, x1, [sp, #16]
        restore_frame
        cbz     x16, .Lnext
        mov     x0, x16                 /* one of our wrappers */
        ret
.Lnext:
        adrp    x16, sp_chain_dlsym
        ldr     x16, [x16, #:lo12:sp_chain_dlsym]
        cbz     x16, .Lfirst
        br      x16
.Lfirst:
        save_arguments
        bl      sp_resolve
        ldp     x0, x1, [sp, #16]
        restore_frame
        adrp    x16, sp_chain_dlsym
        ldr     x16, [x16, #:lo12:sp_chain_dlsym]
        cbz     x16, .Lnone
        br      x16
.Lnone:
        mov     x0, #0
        ret
        .cfi_endproc
        .size   dlsym, . - dlsym

/* void *dlopen(const char *path, int flags) */
        .globl  dlopen
        .type   dlopen, %function
        .p2align 4
dlopen:
        .cfi_startproc
        hint    #34
        save_arguments
        bl      sp_before_dlopen
        ldp     x0, x1, [sp, #16]
        restore_frame
        adrp    x16, sp_chain_dlopen
        ldr     x16, [x16, #:lo12:sp_chain_dlopen]
        cbz     x16, .Lopen_none
        adrp    x17, sp_dlopen_mask
        ldr     w17, [x17, #:lo12:sp_dlopen_mask]
        and     w1, w1, w17
        br      x16
.Lopen_none:
        mov     x0, #0
        ret
        .cfi_endproc
        .size   dlopen, . - dlopen

        .section .note.GNU-stack, "", %progbits
