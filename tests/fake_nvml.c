/* A library that t_nvml opens in place of NVIDIA's: two cards, one of them in a narrow slot and
 * used by others.  With OLD it lacks everything that a library may lack. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct memory_info {
    unsigned long long total, free, used;
};

struct process_info {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned instance, compute_instance;
};

static const char cards[2];             /* their addresses are the handles */

static int number(const void *card)
{
    return (int)((const char *)card - cards);
}

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int rc);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **card);
int nvmlDeviceGetName(void *card, char *name, unsigned size);

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

const char *nvmlErrorString(int rc)
{
    return rc == 7 ? "insufficient size" : "unknown";
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **card)
{
    *card = (void *)(cards + i);
    return 0;
}

int nvmlDeviceGetName(void *card, char *name, unsigned size)
{
    snprintf(name, size, "Card %c", "AB"[number(card)]);
    return 0;
}

#ifndef OLD
int nvmlSystemGetDriverVersion(char *version, unsigned size);
int nvmlDeviceGetMemoryInfo(void *card, struct memory_info *m);
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *n, struct process_info *p);
int nvmlDeviceGetCurrPcieLinkGeneration(void *card, unsigned *v);
int nvmlDeviceGetCurrPcieLinkWidth(void *card, unsigned *v);
int nvmlDeviceGetMaxPcieLinkGeneration(void *card, unsigned *v);
int nvmlDeviceGetMaxPcieLinkWidth(void *card, unsigned *v);
int nvmlDeviceGetEnforcedPowerLimit(void *card, unsigned *v);
int nvmlDeviceGetPowerManagementDefaultLimit(void *card, unsigned *v);
int nvmlDeviceGetPersistenceMode(void *card, unsigned *v);

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    snprintf(version, size, "550.54.15");
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *card, struct memory_info *m)
{
    *m = (struct memory_info){ 24ull << 30, 20ull << 30, 4ull << 30 };
    return card ? 0 : 2;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *n, struct process_info *p)
{
    unsigned self = (unsigned)getpid();

    if (!number(card)) {
        *n = 0;
        return 0;
    }
    if (*n < 3)
        return 7;
    *n = 3;
    p[0] = (struct process_info){ self, 1ull << 30, 0, 0 };
    p[1] = (struct process_info){ self + 1, 3ull << 30, 0, 0 };
    p[2] = (struct process_info){ self + 2, ~0ull, 0, 0 };
    return 0;
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *card, unsigned *v)
{
    *v = number(card) ? 3 : 1;
    return 0;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *card, unsigned *v)
{
    *v = number(card) ? 4 : 16;
    return 0;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *card, unsigned *v)
{
    *v = 4;
    return card ? 0 : 2;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *card, unsigned *v)
{
    *v = 16;
    return card ? 0 : 2;
}

int nvmlDeviceGetEnforcedPowerLimit(void *card, unsigned *v)
{
    *v = number(card) ? 250000 : 350000;
    return 0;
}

int nvmlDeviceGetPowerManagementDefaultLimit(void *card, unsigned *v)
{
    *v = 350000;
    return card ? 0 : 2;
}

/* Not supported on the second card. */
int nvmlDeviceGetPersistenceMode(void *card, unsigned *v)
{
    *v = 1;
    return number(card) ? 3 : 0;
}
#endif
