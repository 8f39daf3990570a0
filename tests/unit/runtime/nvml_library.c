/* The driver's library libnvidia-ml.so.1 without a driver: two GPUs, of which the second is a part of one (MIG). */
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };
typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
static char second;

int nvmlInitWithFlags(unsigned int flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { return "Not Supported"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    *device = index == 1 ? &second : 0;
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
    strncpy(uuid, device == &second ? "MIG-1111" : "GPU-0000", length);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    memory->total = 80ULL << 30;
    memory->used = (device == &second ? 2ULL : 1ULL) << 30;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *utilization) {
    if (device == &second) return NOT_SUPPORTED;
    utilization->gpu = 73;
    utilization->memory = 10;
    return SUCCESS;
}
