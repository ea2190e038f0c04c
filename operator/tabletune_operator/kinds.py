def kubectl_name(workload):
    return f"deploy/{workload['metadata']['name']}"
