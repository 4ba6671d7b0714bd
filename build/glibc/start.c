/* Parts of an older glibc that a program linked with it has inside: its first instructions, and functions
   that headers of today call and libraries of before 2.33 do not export.

   Later start files leave the constructors of a program to the library, earlier libraries leave
   them to the program: here they are handed over as before, which every glibc understands. */

#include <stddef.h>

struct stat;

extern int main(int, char **, char **);
extern int __libc_start_main(int (*)(int, char **, char **), int, char **,
                             void (*)(int, char **, char **), void (*)(void), void (*)(void),
                             void *);
extern int __xstat64(int, const char *, struct stat *);
extern int __lxstat64(int, const char *, struct stat *);
extern int __fxstat64(int, int, struct stat *);
extern int __fxstatat64(int, int, const char *, struct stat *, int);
extern int __cxa_atexit(void (*)(void *), void *, void *);

/* Bounds of the table of constructors, which the linker places. */
typedef void constructor(int, char **, char **);
extern constructor *__init_array_start[] __attribute__((visibility("hidden")));
extern constructor *__init_array_end[] __attribute__((visibility("hidden")));

#ifdef START
/* The kernel leaves argument count and pointers on the stack, the loader its own last function in a
   register. */
#ifdef __x86_64__
__asm__(".text\n.globl _start\n.type _start, @function\n_start:\n"
        ".cfi_startproc\n.cfi_undefined rip\n"
        "xor %ebp, %ebp\nmov %rsp, %rdi\nmov %rdx, %rsi\nand $-16, %rsp\ncall begin\nhlt\n"
        ".cfi_endproc\n.size _start, . - _start\n");
#else
__asm__(".text\n.globl _start\n.type _start, @function\n_start:\n"
        ".cfi_startproc\n.cfi_undefined x30\n"
        "mov x29, #0\nmov x30, #0\nmov x1, x0\nmov x0, sp\nbl begin\nbrk #1\n"
        ".cfi_endproc\n.size _start, . - _start\n");
#endif

static void construct(int argc, char **argv, char **envp) {
    for (constructor **each = __init_array_start; each != __init_array_end; each++) {
        (*each)(argc, argv, envp);
    }
}

__attribute__((visibility("hidden"), used)) void begin(long *stack, void (*finish)(void)) {
    __libc_start_main(main, (int)stack[0], (char **)(stack + 1), construct, NULL, finish, stack);
}
#else
/* Version of `struct stat` that 64-bit systems have. */
#ifdef __x86_64__
enum { STAT_VERSION = 1 };
#else
enum { STAT_VERSION = 0 };
#endif

#pragma GCC visibility push(hidden)
extern void *__dso_handle;

int stat64(const char *path, struct stat *to) { return __xstat64(STAT_VERSION, path, to); }

int lstat64(const char *path, struct stat *to) { return __lxstat64(STAT_VERSION, path, to); }

int fstat64(int file, struct stat *to) { return __fxstat64(STAT_VERSION, file, to); }

int fstatat64(int folder, const char *path, struct stat *to, int flags) {
    return __fxstatat64(STAT_VERSION, folder, path, to, flags);
}

int atexit(void (*function)(void)) {
    return __cxa_atexit((void (*)(void *))function, NULL, &__dso_handle);
}
#pragma GCC visibility pop
#endif
