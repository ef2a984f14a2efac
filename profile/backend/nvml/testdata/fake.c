/* A management library for tests. Macros choose the machine and spoil it:
   COUNT=n      n GPUs instead of 2: 0 is an H200, the others are an L4 each
   ALIKE        all are H200s
   DIRECT       GPUs 0 and 1 share 4 NVLinks, 2 and 3 share 2
   SWITCHED     every GPU has 18 NVLinks to switches, GPU 3 one of them down
   P2P=n        status of NVLink between GPUs, 0 is good
   MIG          GPU 0 is partitioned
   REFUSE="f=n f@g=n"  function f returns n, for all GPUs or for GPU g
   V1           only the first versions of versioned functions
   OLDNAMES     clock event reasons by the name they had before driver 535
   f=absent_f   takes function f out of the library, whatever it is */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef COUNT
#define COUNT 2
#endif
#ifndef P2P
#define P2P 0
#endif
#ifndef REFUSE
#define REFUSE ""
#endif
#ifdef ALIKE
#define KIND(g) 0
#else
#define KIND(g) ((g)->index != 0)
#endif

/* Return codes of nvml.h that are used here. */
enum { UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };

struct gpu { unsigned index; int part; /* from 1 */ };
struct memory { unsigned long long total, free, used; };
struct violation { unsigned long long at_us, ns; };
struct attributes { unsigned multiprocessors, others[7]; unsigned long long memory_mib; };
struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
#ifdef V1
	unsigned reserved[4];
#else
	char text[32];
#endif
};
struct process {
	unsigned pid;
	unsigned long long memory;
#ifndef V1
	unsigned gpu_instance, compute_instance;
#endif
};

static struct gpu gpus[16], parts[8];
static int started;

/* What differs between an H200 and an L4. */
static const struct {
	const char *name; /* the L4 has a byte in its name that is no UTF-8 */
	unsigned gib, major, minor, cores, sm_mhz, sm_max_mhz, memory_mhz, mw, limit_mw, celsius;
	unsigned long long reasons, power_ns, thermal_ns, ecc_errors;
	unsigned persistence, generation, width, max_generation, max_width;
} kinds[2] = {
	{ "NVIDIA H200", 141, 9, 0, 16896, 345, 1980, 3201, 75300, 700000, 31, 0x1, 12500000000, 0, 0, 1, 5, 16, 5, 16 },
	{ "NVIDIA \xff" "L4", 24, 8, 9, 7424, 1410, 2040, 6251, 71999, 72000, 0, 0x224, 3600000000000, 1500000, 2, 0, 1, 8, 4, 16 },
};

#ifdef V1
#define V2(f) f
#define V3(f) f
#else
#define V2(f) f##_v2
#define V3(f) f##_v3
#endif

/* refusal looks for "name=n" and "name@index=n" in REFUSE. */
static int refusal(const char *f, int index) {
	char all[80], here[80];
	const char *at, *refuse = REFUSE;
	snprintf(all, sizeof all, "%s=", f);
	snprintf(here, sizeof here, "%s@%d=", f, index);
	if ((at = strstr(refuse, here))) return atoi(at + strlen(here));
	if ((at = strstr(refuse, all))) return atoi(at + strlen(all));
	return 0;
}

#define ASK(index) do { \
	int refused_ = refusal(__func__, index); \
	if (!started) return UNINITIALIZED; \
	if (refused_) return refused_; \
} while (0)

int V2(nvmlInit)(void) {
	int refused = refusal(__func__, -1);
	/* Unlike the real one, this fake refuses a second start, so that a missing
	   shutdown shows. */
	if (started) return 99;
	started = refused == 0;
	return refused;
}

int nvmlShutdown(void) {
	ASK(-1);
	started = 0;
	return 0;
}

const char *nvmlErrorString(int code) {
	static char said[32];
	snprintf(said, sizeof said, "fake error %d", code);
	return said;
}

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
	ASK(-1);
	snprintf(to, size, "580.95.05");
	return 0;
}

int V2(nvmlDeviceGetCount)(unsigned *count) {
	ASK(-1);
	*count = COUNT;
	return 0;
}

int V2(nvmlDeviceGetHandleByIndex)(unsigned i, struct gpu **g) {
	if (i >= COUNT) return INVALID;
	ASK(i);
	gpus[i].index = i;
	*g = &gpus[i];
	return 0;
}

int nvmlDeviceGetName(struct gpu *g, char *to, unsigned size) {
	static const char *profiles[] = { "", " MIG 1g.18gb", " MIG 3g.71gb" };
	ASK(g->index);
	snprintf(to, size, "%s%s", kinds[KIND(g)].name, profiles[g->part]);
	return 0;
}

int nvmlDeviceGetUUID(struct gpu *g, char *to, unsigned size) {
	ASK(g->index);
	snprintf(to, size, "%s-0000-%u", g->part ? "MIG" : "GPU", g->part ? g->part : g->index);
	return 0;
}

int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *m) {
	static const unsigned gib[] = { 0, 16, 69 };
	ASK(g->index);
	m->total = (unsigned long long)(g->part ? gib[g->part] : kinds[KIND(g)].gib) << 30;
	m->free = m->used = 0;
	return 0;
}

static void place(struct pci *p, unsigned bus) {
	memset(p, 0, sizeof *p);
	p->domain = 0;
	p->bus = bus;
#ifndef V1
	snprintf(p->text, sizeof p->text, "%08X:%02X:00.0", 0, bus);
#endif
	snprintf(p->legacy, sizeof p->legacy, "%04X:%02X:00.0", 0, bus);
}

static unsigned bus_of(unsigned index) { return 0x1a + 0x10 * index; }

int V3(nvmlDeviceGetPciInfo)(struct gpu *g, struct pci *p) {
	ASK(g->index);
	place(p, bus_of(g->index));
	return 0;
}

int nvmlDeviceGetCudaComputeCapability(struct gpu *g, int *major, int *minor) {
	ASK(g->index);
	*major = kinds[KIND(g)].major;
	*minor = kinds[KIND(g)].minor;
	return 0;
}

/* NUMBER makes a function that returns a number of a GPU of a kind. */
#define NUMBER(f, type, field) \
	int f(struct gpu *g, type *to) { \
		ASK(g->index); \
		*to = kinds[KIND(g)].field; \
		return 0; \
	}

NUMBER(nvmlDeviceGetNumGpuCores, unsigned, cores)
NUMBER(nvmlDeviceGetPowerUsage, unsigned, mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, limit_mw)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, persistence)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, generation)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, max_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, max_width)
#ifdef OLDNAMES
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons)
#else
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reasons)
#endif

/* Clocks: 1 is the SM's, 2 the memory's. */
int nvmlDeviceGetClockInfo(struct gpu *g, int clock, unsigned *mhz) {
	ASK(g->index);
	*mhz = clock == 1 ? kinds[KIND(g)].sm_mhz : clock == 2 ? kinds[KIND(g)].memory_mhz : 1;
	return 0;
}

int nvmlDeviceGetMaxClockInfo(struct gpu *g, int clock, unsigned *mhz) {
	ASK(g->index);
	*mhz = clock == 1 ? kinds[KIND(g)].sm_max_mhz : clock == 2 ? kinds[KIND(g)].memory_mhz : 2;
	return 0;
}

int nvmlDeviceGetTemperature(struct gpu *g, int sensor, unsigned *celsius) {
	ASK(g->index);
	if (sensor != 0) return INVALID;
	*celsius = kinds[KIND(g)].celsius;
	return 0;
}

/* Policies: 0 is power, 1 thermal. */
int nvmlDeviceGetViolationStatus(struct gpu *g, int policy, struct violation *v) {
	ASK(g->index);
	if (policy > 1) return INVALID;
	v->at_us = 77;
	v->ns = policy ? kinds[KIND(g)].thermal_ns : kinds[KIND(g)].power_ns;
	return 0;
}

int nvmlDeviceGetEccMode(struct gpu *g, unsigned *now, unsigned *pending) {
	ASK(g->index);
	*now = 1;
	*pending = 0;
	return 0;
}

/* Type 1 is uncorrected; counter 0 counts since the last reset. */
int nvmlDeviceGetTotalEccErrors(struct gpu *g, int type, int counter, unsigned long long *errors) {
	ASK(g->index);
	*errors = type == 1 && counter == 0 ? kinds[KIND(g)].ecc_errors : 1000;
	return 0;
}

int nvmlDeviceGetMigMode(struct gpu *g, unsigned *now, unsigned *pending) {
	ASK(g->index);
	if (KIND(g)) return NOT_SUPPORTED;
	*now = *pending = 0;
#ifdef MIG
	*now = g->index == 0;
#endif
	return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(struct gpu *g, unsigned *most) {
	ASK(g->index);
	*most = 7;
	return 0;
}

/* Only the indices 1 and 4 hold a part. */
int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *g, unsigned i, struct gpu **part) {
	ASK(g->index);
	if (i != 1 && i != 4) return NOT_FOUND;
	*part = &parts[i];
	**part = *g;
	(*part)->part = i == 1 ? 1 : 2;
	return 0;
}

int V2(nvmlDeviceGetAttributes)(struct gpu *g, struct attributes *a) {
	ASK(g->index);
	if (!g->part) return NOT_SUPPORTED;
	memset(a, 0, sizeof *a);
	a->multiprocessors = g->part == 1 ? 16 : 60;
	return 0;
}

int nvmlDeviceGetNvLinkState(struct gpu *g, unsigned link, unsigned *up) {
	ASK(g->index);
#if defined(SWITCHED)
	*up = g->index != 3 || link != 17;
	return link < 18 ? 0 : INVALID;
#elif defined(DIRECT)
	/* GPUs 0 and 1 say of links beyond their 6 that there are none, 2 and 3 that
	   they are not supported. */
	if (link >= 6) return g->index < 2 ? INVALID : NOT_SUPPORTED;
	*up = link < (g->index < 2 ? 4 : 2);
	return 0;
#else
	return NOT_SUPPORTED;
#endif
}

int V2(nvmlDeviceGetNvLinkRemotePciInfo)(struct gpu *g, unsigned link, struct pci *p) {
	ASK(g->index);
#ifdef DIRECT
	place(p, bus_of(g->index ^ 1));
#else
	place(p, 0xc0 + link % 4);
#endif
	return 0;
}

/* 0 is a GPU, 2 a switch. */
int nvmlDeviceGetNvLinkRemoteDeviceType(struct gpu *g, unsigned link, unsigned *kind) {
	ASK(g->index);
#ifdef DIRECT
	*kind = 0;
#else
	*kind = 2;
#endif
	return 0;
}

/* 4 is version 3.0, 6 is version 4.0. */
int nvmlDeviceGetNvLinkVersion(struct gpu *g, unsigned link, unsigned *version) {
	ASK(g->index);
#ifdef DIRECT
	*version = 4;
#else
	*version = 6;
#endif
	return 0;
}

/* Capability 2 is NVLink. */
int nvmlDeviceGetP2PStatus(struct gpu *a, struct gpu *b, int capability, unsigned *status) {
	ASK(a->index);
	*status = capability == 2 ? P2P : 0;
	return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(struct gpu *a, struct gpu *b, unsigned *level) {
	static const unsigned levels[4][4] = {
		{ 0, 10, 30, 50 }, { 10, 0, 40, 50 }, { 30, 40, 0, 20 }, { 50, 50, 20, 0 },
	};
	ASK(a->index);
	*level = levels[a->index][b->index];
	return 0;
}

/* GPU 0 is near node 0 and processors 0-2 and 64-65; the others near node 1 and
   processors 3-63. */
int nvmlDeviceGetMemoryAffinity(struct gpu *g, unsigned words, unsigned long *set, int scope) {
	ASK(g->index);
	if (scope != 0 || words * sizeof *set * 8 < 1024) return INVALID;
	memset(set, 0, words * sizeof *set);
	set[0] = g->index ? 2 : 1;
	return 0;
}

int nvmlDeviceGetCpuAffinity(struct gpu *g, unsigned words, unsigned long *set) {
	ASK(g->index);
	if (words < 2) return INVALID;
	memset(set, 0, words * sizeof *set);
	set[0] = g->index ? ~7ul : 7ul;
	set[1] = g->index ? 0 : 3;
	return 0;
}

/* GPU 1 computes for two others and for the process that asks. */
int V3(nvmlDeviceGetComputeRunningProcesses)(struct gpu *g, unsigned *count, struct process *to) {
	unsigned room = *count;
	ASK(g->index);
	*count = g->index == 1 ? 3 : 0;
	if (room < *count) return TOO_SMALL;
	if (*count) {
		to[0].pid = 4711;
		to[1].pid = getpid();
		to[2].pid = 4712;
	}
	return 0;
}
