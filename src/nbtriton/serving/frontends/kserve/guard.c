/* Guarded mappings: shared memory of a client that may truncate it at any time.

   An access beyond the end of a mapped file raises SIGBUS, which ends the process. For an address in a guarded
   mapping the handler puts pages of zeros in place of what is missing, notes that the mapping is broken, and the
   access goes on. Any other SIGBUS is handed to the handler that was there before. Called through ctypes. */

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAPPINGS 4096

/* A slot is free while its end is 0, and being filled while its end is 1. */
static struct {
    _Atomic uintptr_t start, end;
    _Atomic int broken;
} mappings[MAPPINGS];
static struct sigaction before;
static _Atomic int handed_on;

static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    int error = errno;
    /* Positive: an access to memory, not kill() or raise(). */
    if (info->si_code > 0) {
        uintptr_t at = (uintptr_t)info->si_addr;
        for (int slot = 0; slot < MAPPINGS; slot++) {
            uintptr_t end = atomic_load(&mappings[slot].end);
            if (at >= end || at < atomic_load(&mappings[slot].start)) continue;
            /* What follows a missing page is missing too. */
            uintptr_t page = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
            void *made = mmap((void *)page, end - page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            if (made == MAP_FAILED) break;
            atomic_store(&mappings[slot].broken, 1);
            errno = error;
            return;
        }
    }
    /* Once only: the handler before may call this one in turn, as Python's faulthandler does. */
    struct sigaction next = before;
    if (atomic_exchange(&handed_on, 1)) {
        next.sa_handler = SIG_DFL;
        next.sa_flags = 0;
    }
    sigaction(number, &next, NULL);
    if (info->si_code <= 0) raise(number); /* else the access is repeated, and raises it again */
    errno = error;
}

/* Install the handler, before any that was installed since; 0, or -1 with errno. */
int guard_install(void) {
    struct sigaction now, ours = {0};
    if (sigaction(SIGBUS, NULL, &now)) return -1;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error) return 0;
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    before = now;
    atomic_store(&handed_on, 0);
    return sigaction(SIGBUS, &ours, NULL);
}

/* Guard whole pages; return a slot, or -1 if all are taken. */
int guard_add(uintptr_t start, size_t size) {
    for (int slot = 0; slot < MAPPINGS; slot++) {
        uintptr_t vacant = 0;
        if (!atomic_compare_exchange_strong(&mappings[slot].end, &vacant, 1)) continue;
        atomic_store(&mappings[slot].start, start);
        atomic_store(&mappings[slot].broken, 0);
        atomic_store(&mappings[slot].end, start + size);
        return slot;
    }
    return -1;
}

int guard_broken(int slot) { return atomic_load(&mappings[slot].broken); }

/* Before the memory is unmapped. */
void guard_remove(int slot) { atomic_store(&mappings[slot].end, 0); }
