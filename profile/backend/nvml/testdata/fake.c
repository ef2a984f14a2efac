/* A management library with two GPUs, for tests. Macros spoil parts of it:
   OLD        only the first versions of versioned functions, no nvmlDeviceGetUUID
   NO_INIT    no nvmlInit of any version
   V1         only the first versions of versioned functions
   INIT=n     nvmlInit returns n
   COUNT=n    n GPUs instead of 2
   UUID=n     nvmlDeviceGetUUID of GPU 1 returns n
   HANDLE=n   the handle of GPU 0 is refused with n
   REST=n     driver version, name and memory are refused with n */
#include <stdio.h>
#include <string.h>

#ifndef INIT
#define INIT 0
#endif
#ifndef COUNT
#define COUNT 2
#endif
#ifndef UUID
#define UUID 0
#endif
#ifndef HANDLE
#define HANDLE 0
#endif
#ifndef REST
#define REST 0
#endif

struct gpu { unsigned index; };
struct memory { unsigned long long total, free, used; };
static struct gpu gpus[16];
static int started;

#if defined(OLD) || defined(V1)
#define VERSION(f) f
#else
#define VERSION(f) f##_v2
#endif

/* 1 is NVML_ERROR_UNINITIALIZED. */
#define AFTER_INIT if (!started) return 1

#ifndef NO_INIT
int VERSION(nvmlInit)(void) {
	/* Unlike the real one, this fake refuses a second start, so that a missing
	   shutdown shows. */
	if (started) return 99;
	started = INIT == 0;
	return INIT;
}
#endif

int nvmlShutdown(void) {
	AFTER_INIT;
	started = 0;
	return 0;
}

const char *nvmlErrorString(int code) {
	static char said[32];
	snprintf(said, sizeof said, "fake error %d", code);
	return said;
}

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
	AFTER_INIT;
	if (REST) return REST;
	snprintf(to, size, "580.95.05");
	return 0;
}

int VERSION(nvmlDeviceGetCount)(unsigned *count) {
	AFTER_INIT;
	*count = COUNT;
	return 0;
}

int VERSION(nvmlDeviceGetHandleByIndex)(unsigned i, struct gpu **device) {
	AFTER_INIT;
	if (i >= COUNT) return 2;
	if (HANDLE && i == 0) return HANDLE;
	gpus[i].index = i;
	*device = &gpus[i];
	return 0;
}

int nvmlDeviceGetName(struct gpu *device, char *to, unsigned size) {
	if (REST) return REST;
	/* GPU 1 has a byte in its name that is no UTF-8. */
	snprintf(to, size, device->index ? "NVIDIA \xff" "L4" : "NVIDIA H200");
	return 0;
}

#ifndef OLD
int nvmlDeviceGetUUID(struct gpu *device, char *to, unsigned size) {
	if (UUID && device->index == 1) return UUID;
	snprintf(to, size, "GPU-0000-%u", device->index);
	return 0;
}
#endif

int nvmlDeviceGetMemoryInfo(struct gpu *device, struct memory *m) {
	if (REST) return REST;
	m->total = (unsigned long long)(device->index ? 24 : 141) << 30;
	m->free = m->used = 0;
	return 0;
}
