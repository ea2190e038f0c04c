// Command gpus is a kubelet device plugin that offers nvidia.com/gpu devices on a node without any.
//
// The scheduler and the kubelet count them as they count real ones; containers get nothing. The kubelet finds the plugin by
// its socket in the plugins_registry folder, also after a restart of either: the older way, a socket below /var/lib/kubelet
// whatever the kubelet's root folder, has no room for two kubelets.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const resource = "nvidia.com/gpu"

type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	registration.UnimplementedRegistrationServer
	socket  string
	devices []*v1beta1.Device
}

func newPlugin(socket string, count int) *plugin {
	p := &plugin{socket: socket}
	for i := range count {
		p.devices = append(p.devices, &v1beta1.Device{ID: fmt.Sprintf("gpu-%d", i), Health: v1beta1.Healthy})
	}
	return p
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.DevicePlugin,
		Name:              resource,
		Endpoint:          p.socket,
		SupportedVersions: []string{v1beta1.Version},
	}, nil
}

func (p *plugin) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		log.Printf("%d %s offered", len(p.devices), resource)
	} else {
		log.Printf("the kubelet refuses the plugin: %s", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (p *plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{})
	}
	return response, nil
}

func main() {
	socket := flag.String("socket", "", "the plugin's socket, in the kubelet's plugins_registry folder")
	count := flag.Int("count", 1, "devices to offer")
	flag.Parse()
	if err := os.Remove(*socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		log.Fatal(err)
	}
	p := newPlugin(*socket, *count)
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, p)
	v1beta1.RegisterDevicePluginServer(server, p)
	log.Fatal(server.Serve(listener))
}
