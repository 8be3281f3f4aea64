// The OpenTelemetry Collector with the parts that a test needs: OTLP in, OTLP out, configured by a file.
package main

import (
	"log"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func main() {
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Description: "OpenTelemetry Collector"},
		Factories: func() (otelcol.Factories, error) {
			in, out := otlpreceiver.NewFactory(), otlphttpexporter.NewFactory()
			return otelcol.Factories{
				Receivers: map[component.Type]receiver.Factory{in.Type(): in},
				Exporters: map[component.Type]exporter.Factory{out.Type(): out},
				Telemetry: otelconftelemetry.NewFactory(),
			}, nil
		},
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()}, DefaultScheme: "file"},
		},
	})
	if err := command.Execute(); err != nil {
		log.Fatal(err)
	}
}
