/* A stand-in for NVIDIA's management library: it says what the file named by FAKE_NVML says.
 *
 * The file is read anew for every question, so that a test can change it while a program runs:
 *
 *     init 0                          return code of the initialisation
 *     devices 2                       number of devices
 *     0 uuid GPU-aaaa                 of device 0; so are all lines that start with a number
 *     0 name NVIDIA H100 80GB HBM3
 *     0 bus 00000000:01:00.0
 *     0 memory_used 1000              bytes; the last line for a key counts
 *     0 watts 100                     the energy counter is watts x seconds of the monotonic clock
 *     0 limits 4                      bits of what holds the clocks down
 *     0 process 1234 5000             pid and bytes; each line is one process
 *     0 ecc 3                         uncorrected memory errors
 *     0 thermal_nanoseconds 0         time in which heat held the clocks down
 *     0 utilization 97                percent of time with a kernel; of the memory bus it is a half
 *     0 field 82 55                   what a number of NVML_FI_... gives, as an unsigned int
 *     0 error 15                      return code of every question to the device
 *     0 refuse 3 nvmlDeviceGetPowerUsage   return code of one function
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, TOO_SMALL = 7, UNINITIALIZED = 1 };

typedef struct { int number; } Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
typedef struct { unsigned long long reference, violation; } Violation;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type, code;
    union { double real; unsigned number; unsigned long long large; } value;
} FieldValue;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

static Device devices[16];

/* The rest of the last line that starts with `prefix`, in `out`; 0 when there is none. */
static int find(const char *prefix, char *out, size_t size)
{
    char line[512];
    int found = 0;
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, prefix, strlen(prefix)) == 0) {
            snprintf(out, size, "%s", line + strlen(prefix));
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static unsigned long long number(const char *prefix, unsigned long long otherwise)
{
    char text[512];
    return find(prefix, text, sizeof text) ? strtoull(text, NULL, 10) : otherwise;
}

static unsigned long long of(Device *device, const char *key, unsigned long long otherwise)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%d %s ", device->number, key);
    return number(prefix, otherwise);
}

static int words(Device *device, const char *key, char *out, unsigned size)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%d %s ", device->number, key);
    return find(prefix, out, size) ? SUCCESS : UNSUPPORTED;
}

/* What a question to a device returns before it is answered. */
static int gate(Device *device, const char *function)
{
    char prefix[160], line[512];
    unsigned long long code = of(device, "error", SUCCESS);
    if (code != SUCCESS)
        return (int)code;
    for (code = 1; code < 30; code++) {
        snprintf(prefix, sizeof prefix, "%d refuse %llu %s", device->number, code, function);
        if (find(prefix, line, sizeof line) && line[0] == 0)
            return (int)code;
    }
    return SUCCESS;
}

static int answer(Device *device, const char *function, const char *key, unsigned *out)
{
    int code = gate(device, function);
    unsigned long long value = of(device, key, ~0ULL);
    if (code == SUCCESS && value == ~0ULL)
        code = UNSUPPORTED;
    if (code == SUCCESS)
        *out = (unsigned)value;
    return code;
}

int nvmlInitWithFlags(unsigned flags) { return (int)number("init ", SUCCESS); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "an error"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    snprintf(out, size, "580.65.06");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *out) { *out = 13000; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = (unsigned)number("devices ", 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out)
{
    if (index >= number("devices ", 1) || index >= 16)
        return INVALID;
    devices[index].number = (int)index;
    *out = &devices[index];
    return gate(*out, "nvmlDeviceGetHandleByIndex");
}

int nvmlDeviceGetUUID(Device *device, char *out, unsigned size)
{
    int code = gate(device, "nvmlDeviceGetUUID");
    return code ? code : words(device, "uuid", out, size);
}

int nvmlDeviceGetName(Device *device, char *out, unsigned size)
{
    int code = gate(device, "nvmlDeviceGetName");
    return code ? code : words(device, "name", out, size);
}

int nvmlDeviceGetPciInfo_v3(Device *device, Pci *out)
{
    memset(out, 0, sizeof *out);
    return words(device, "bus", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor)
{
    *major = 9;
    *minor = 0;
    return gate(device, "nvmlDeviceGetCudaComputeCapability");
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *out)
{
    out->total = of(device, "memory_total", 80ULL << 30);
    out->used = of(device, "memory_used", 0);
    out->free = out->total - out->used;
    return gate(device, "nvmlDeviceGetMemoryInfo");
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *out)
{
    char line[512], prefix[64];
    unsigned seen = 0, room = *count;
    int code = gate(device, "nvmlDeviceGetComputeRunningProcesses");
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (code || !file) {
        if (file)
            fclose(file);
        return code;
    }
    snprintf(prefix, sizeof prefix, "%d process ", device->number);
    while (fgets(line, sizeof line, file)) {
        Process process = {0};
        if (strncmp(line, prefix, strlen(prefix)) != 0)
            continue;
        if (sscanf(line + strlen(prefix), "%u %llu", &process.pid, &process.used) != 2)
            continue;
        if (seen < room)
            out[seen] = process;
        seen++;
    }
    fclose(file);
    *count = seen;
    return seen > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *out)
{
    struct timespec now;
    unsigned long long watts = of(device, "watts", 0);
    clock_gettime(CLOCK_MONOTONIC, &now);
    *out = watts * (now.tv_sec * 1000ULL + now.tv_nsec / 1000000ULL);
    return gate(device, "nvmlDeviceGetTotalEnergyConsumption");
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *out)
{
    int code = answer(device, "nvmlDeviceGetPowerUsage", "watts", out);
    *out *= 1000;
    return code;
}

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *out)
{
    *out = 350000;
    return gate(device, "nvmlDeviceGetEnforcedPowerLimit");
}

int nvmlDeviceGetPowerManagementDefaultLimit(Device *device, unsigned *out)
{
    *out = 700000;
    return gate(device, "nvmlDeviceGetPowerManagementDefaultLimit");
}

int nvmlDeviceGetClockInfo(Device *device, unsigned kind, unsigned *out)
{
    *out = kind == 2 ? 2619 : 1755;
    return gate(device, "nvmlDeviceGetClockInfo");
}

int nvmlDeviceGetMaxClockInfo(Device *device, unsigned kind, unsigned *out)
{
    *out = 1980;
    return gate(device, "nvmlDeviceGetMaxClockInfo");
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *out)
{
    return answer(device, "nvmlDeviceGetTemperature", "celsius", out);
}

/* An older driver's name: the newer one is left out, to see that it is asked for in vain. */
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *out)
{
    *out = of(device, "limits", 0);
    return gate(device, "nvmlDeviceGetCurrentClocksThrottleReasons");
}

int nvmlDeviceGetPersistenceMode(Device *device, unsigned *out)
{
    *out = 1;
    return gate(device, "nvmlDeviceGetPersistenceMode");
}

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned kind, unsigned counter,
                                unsigned long long *out)
{
    *out = kind == 1 ? of(device, "ecc", 0) : 0;
    return gate(device, "nvmlDeviceGetTotalEccErrors");
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    *corrected = *uncorrected = *failed = 0;
    *pending = (unsigned)of(device, "remap_pending", 0);
    return gate(device, "nvmlDeviceGetRemappedRows");
}

int nvmlDeviceGetViolationStatus(Device *device, unsigned policy, Violation *out)
{
    out->reference = 0;
    out->violation = policy == 1 ? of(device, "thermal_nanoseconds", 0) : 0;
    return gate(device, "nvmlDeviceGetViolationStatus");
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *out)
{
    int code = answer(device, "nvmlDeviceGetUtilizationRates", "utilization", &out->gpu);
    out->memory = out->gpu / 2;
    return code;
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values)
{
    char key[32];
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "field %u", values[i].id);
        values[i].type = 1;
        values[i].code = answer(device, "nvmlDeviceGetFieldValues", key, &values[i].value.number);
    }
    return SUCCESS;
}
