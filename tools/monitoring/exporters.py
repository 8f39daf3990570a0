"""Metrics of other exporters that dashboards and alerts read, by exporter. Panels are empty where it is missing."""

KUBE_STATE_METRICS = frozenset(
    {
        "kube_deployment_spec_replicas",
        "kube_deployment_status_replicas_ready",
        "kube_pod_container_status_restarts_total",
    }
)
KUBELET = frozenset({"kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes"})
# NVIDIA's exporter, with the labels `namespace` and `pod` of the pod that has the GPU.
DCGM = frozenset(
    {
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_FB_FREE",
        "DCGM_FI_DEV_POWER_USAGE",
    }
)
COLLECTOR = frozenset(
    {
        "otelcol_receiver_refused_spans_total",
        "otelcol_receiver_refused_metric_points_total",
        "otelcol_exporter_send_failed_spans_total",
        "otelcol_exporter_send_failed_metric_points_total",
        "otelcol_exporter_enqueue_failed_spans_total",
    }
)
FOREIGN = KUBE_STATE_METRICS | KUBELET | DCGM | COLLECTOR
